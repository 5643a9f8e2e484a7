"""A training run: its command line, its parts, the loop, its checkpoints, and the Python API."""
