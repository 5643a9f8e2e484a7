"""Rollouts: episodes over the slots of a vector environment and one player."""
