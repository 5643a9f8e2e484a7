"""Builds a training run from its settings: its environments, its first policy, and the parts that train it."""
