"""Environments in Ray actors, on this machine and on others. Ray is imported when a pool is made."""

from envs.actors.env import ActorEnv, in_actors
from envs.actors.pool import ActorPool, close_shared_actors, shared_actors

__all__ = ["ActorEnv", "ActorPool", "close_shared_actors", "in_actors", "shared_actors"]
