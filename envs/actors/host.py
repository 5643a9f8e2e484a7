"""EnvHost, the class of the actors: it holds several environments, each under a key that the caller chooses.

The calls for one key must come one after another.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.errors import MissingBackendError
from envs.ids import task_ids_of


@dataclass(frozen=True)
class EnvKind:
    """The arguments of `gym.make`, with the spec itself, because nodes need not register the environment."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.spec.id} {sorted((key, repr(value)) for key, value in self.kwargs.items())}"

    def make(self) -> gym.Env[str, str]:
        return gym.make(self.spec, disable_env_checker=True, **self.kwargs)


@dataclass(frozen=True)
class About:
    """The properties that all environments of a kind share."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: Mapping[str, Any]
    task_ids: Sequence[str] | None  # None if they have none


class EnvHost:
    """The environments of one process."""

    def __init__(self) -> None:
        self._envs: dict[int, gym.Env[str, str]] = {}
        self._first: dict[str, Any] = {}  # one environment of each kind, for its properties

    def begin(self, kinds: Sequence[EnvKind]) -> tuple[str, str, list[About]]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        name = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
        try:
            return node, name, [self._about(kind) for kind in kinds]
        except MissingBackendError as error:
            raise MissingBackendError(
                f"the node {name} cannot play {kinds[-1].spec.id}: {error}, on that node"
            ) from error

    def reset(
        self, key: int, kind: EnvKind, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[str, dict[str, Any]]:
        if key not in self._envs:
            self._envs[key] = kind.make()
        return self._envs[key].reset(seed=seed, options=options)

    def step(self, key: int, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        return self._envs[key].step(action)

    def close(self, key: int) -> None:
        env = self._envs.pop(key, None)
        if env is not None:
            env.close()

    def _about(self, kind: EnvKind) -> About:
        if kind.name not in self._first:
            self._first[kind.name] = kind.make().unwrapped
        env = self._first[kind.name]
        return About(env.observation_space, env.action_space, env.metadata, task_ids_of(env))
