"""__ENV_ID__ for verifiers and prime-rl: `vf-eval __DASHED__`."""

from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from eh_gym.integrations.verifiers_gym import ChatHarness, GymConfig, GymEnv, GymTask, GymTaskset

__all__ = ["ChatHarness", "GymEnv", "__CLASS__Taskset"]


class __CLASS__Config(GymConfig):
    """The environment, under `--env.taskset`."""

    gym_id: str = "__ENV_ID__"
    make_args: dict[str, Any] = Field(default={"split": "train"})
    every_task: bool = True


class __CLASS__Taskset(GymTaskset, vf.Taskset[GymTask, __CLASS__Config]):
    """The tasks of a split."""
