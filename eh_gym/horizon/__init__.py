"""Controllers of the horizon K."""

from eh_gym.horizon.controller import EpisodeOutcome, HorizonController
from eh_gym.horizon.elastic import ElasticHorizon
from eh_gym.horizon.keyed import KeyedHorizon
from eh_gym.horizon.make import make_controller
from eh_gym.horizon.schedules import FixedHorizon, LinearHorizon, MultiplicativeHorizon, StagedHorizon, TTIHorizon
from eh_gym.horizon.shared import SharedHorizon
from eh_gym.horizon.task import TaskHorizon

__all__ = [
    "ElasticHorizon",
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
    "make_controller",
]
