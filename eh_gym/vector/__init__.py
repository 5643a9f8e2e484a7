"""Environments stepped in threads, all at once or slot by slot."""

from eh_gym.vector.make import make_vec
from eh_gym.vector.thread import ThreadVectorEnv

__all__ = ["ThreadVectorEnv", "make_vec"]
