"""Builds a training run from its settings, and saves and restores it."""
