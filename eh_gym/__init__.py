"""Gymnasium environments for LLM agents, and wrappers that find how many steps an agent really needs.

Importing registers the ``EH-*`` ids with gymnasium.
"""

from importlib import metadata

from eh_gym import errors, horizon
from eh_gym.horizon import *  # noqa: F403
from eh_gym.registration import register_envs
from eh_gym.replies import split_reply
from eh_gym.spaces import UnicodeText
from eh_gym.vector import ThreadVectorEnv, make_vec
from eh_gym.wrappers import ElasticTimeLimit

__all__ = ["ElasticTimeLimit", "ThreadVectorEnv", "UnicodeText", "errors", "make_vec", "split_reply"]
__all__ += horizon.__all__
__all__.sort()

try:
    __version__ = metadata.version("elastic-horizon")
except metadata.PackageNotFoundError:  # a source tree that nobody has installed
    __version__ = "0+unknown"

register_envs()
