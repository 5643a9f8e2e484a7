"""Flags about the environment: which one, with which arguments, and where its processes live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from eh_gym.errors import ConfigError
from envs.making import read_env_args
from envs.mixed import read_environments
from harness.settings.ranges import Range

__all__ = ["GIVEN", "EnvironmentFlags"]

GIVEN = "given:"
"""What begins the name of an environment or a controller that is an object of a Python program; see `harness.api.train`."""


@dataclass(frozen=True)
class EnvironmentFlags:
    """Which environment the agent acts in, and where it runs."""

    env: str = "EH-Cabinet-v0"
    """The id of the environment. Several, such as EH-Cabinet-v0:2,EH-CabinetLocked-v0:1, share the updates' tasks in this
    ratio."""
    env_args: str = "{}"
    """Arguments of gym.make, a JSON object such as '{"categories": ["base"]}'. An object under an id is for that environment
    alone."""
    split: str = ""
    """The split of the training tasks. Empty takes the environment's own default."""
    tasks: str = ""
    """With --agent: the file of its tasks, a JSON object a line; "id" and "split" (default train) are optional."""
    env_threads: Annotated[int, Range(0)] = 64
    """The number of threads that step environments. 0 is fastest if a step takes microseconds."""
    env_workers: Literal["local", "ray"] = "local"
    """Where environments run: on this machine (local), or in Ray actors on a cluster's nodes (ray)."""
    ray_address: str = ""
    """The Ray cluster that this machine has joined: auto or HOST:PORT. Empty starts one on this machine."""

    def check_environment(self) -> None:
        """Raises ConfigError for arguments that are not a JSON object, and for Ray's flag without Ray."""
        if self.env.startswith(GIVEN) and self.env_workers != "local":
            raise ConfigError(
                f"an environment that a Python program gives must be on this machine, got --env-workers {self.env_workers}"
            )
        if self.ray_address and self.env_workers != "ray":
            raise ConfigError("--ray-address is for --env-workers ray, got --env-workers local")
        self.environment_args()
        self.environments()

    def environments(self) -> dict[str, int]:
        """The ids in `env`, with their weights."""
        return read_environments(self.env)

    @property
    def env_name(self) -> str:
        """`env` as a part of a folder's name: A:2,B becomes A-2+B."""
        return self.env.replace(",", "+").replace(":", "-") if "," in self.env else self.env.removeprefix(GIVEN)

    def environment_args(self) -> dict[str, Any]:
        """`env_args` as a dict, with `split` in it if one is given."""
        args = read_env_args(self.env_args)
        if "split" in args:
            raise ConfigError(f"env_args has the split {args['split']!r}; give --split {args['split']} instead")
        if other := [name for name in args if not name.isidentifier() and name not in self.environments()]:
            raise ConfigError(
                f"env_args has {', '.join(other)}, which --env {self.env} does not name; correct one of them"
            )
        return {**args, "split": self.split} if self.split else args
