"""Evaluation on held-out tasks: playing the episodes, keeping them in a folder, and computing the result."""
