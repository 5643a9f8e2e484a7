"""The folder of one run, with its settings, checkpoints, metrics and episodes; and what the terminal shows of the run."""
