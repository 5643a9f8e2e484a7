"""What a run shows on the terminal, and how it handles Ctrl-C."""
