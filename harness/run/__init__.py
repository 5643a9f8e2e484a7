"""The folder of one run, with its settings, metrics and episodes; and what the terminal shows of the run."""
