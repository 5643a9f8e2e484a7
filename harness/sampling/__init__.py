"""Samplers: they take token ids and return token ids with their log-probabilities."""
