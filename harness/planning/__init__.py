"""The plan of a training run: tokens, FLOPs and memory, computed from its settings before anything is loaded."""
