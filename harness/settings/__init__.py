"""The settings of a run: a dataclass for each group of flags, the presets, and recipes. Importing them loads no torch."""
