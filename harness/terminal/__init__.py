"""What a run shows on the terminal, and how it hears Ctrl-C."""
