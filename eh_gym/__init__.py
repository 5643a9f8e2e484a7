"""Gymnasium environments for LLM agents, and wrappers that find how many steps an agent really needs.

Importing registers the ``EH-*`` ids with gymnasium.
"""

from eh_gym import errors
from eh_gym.horizon import (
    ElasticHorizon,
    EpisodeOutcome,
    FixedHorizon,
    HorizonController,
    KeyedHorizon,
    LinearHorizon,
    MultiplicativeHorizon,
    SharedHorizon,
    StagedHorizon,
    TaskHorizon,
    TTIHorizon,
    make_controller,
)
from eh_gym.registration import register_envs
from eh_gym.replies import split_reply
from eh_gym.spaces import UnicodeText
from eh_gym.vector import ThreadVectorEnv, make_vec
from eh_gym.wrappers import ElasticTimeLimit

__all__ = [
    "ElasticHorizon",
    "ElasticTimeLimit",
    "EpisodeOutcome",
    "FixedHorizon",
    "HorizonController",
    "KeyedHorizon",
    "LinearHorizon",
    "MultiplicativeHorizon",
    "SharedHorizon",
    "StagedHorizon",
    "TTIHorizon",
    "TaskHorizon",
    "ThreadVectorEnv",
    "UnicodeText",
    "errors",
    "make_controller",
    "make_vec",
    "split_reply",
]

register_envs()
