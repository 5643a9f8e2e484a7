"""Held-out episodes: who plays them, where they are kept, and what they say."""
