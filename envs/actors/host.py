"""What runs inside an actor: several environments in one process, each under a key of its caller's.

Left out: Ray, which pool.py has, and deadlines and retries, which are the caller's. Calls of one key come one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

__all__ = ["About", "EnvHost", "EnvKind"]

_METHODS = ("expert", "random_action", "prepare")


@dataclass(frozen=True)
class EnvKind:
    """How an environment is made: what `gym.make` gets. It carries the spec, so that nothing need be registered elsewhere."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The same text for the same kind."""
        return f"{self.spec.id} {sorted((key, repr(value)) for key, value in self.kwargs.items())}"

    def make(self) -> gym.Env[str, str]:
        """A new environment, as `eh_gym.make_vec` makes its own."""
        return gym.make(self.spec, disable_env_checker=True, **self.kwargs)


@dataclass(frozen=True)
class About:
    """What is the same for all environments of a kind.

    Attributes:
        observation_space: Theirs.
        action_space: Theirs.
        metadata: Theirs.
        task_ids: Theirs; None where there are none.
        methods: Which of ``expert``, ``random_action`` and ``prepare`` they have.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: Mapping[str, Any]
    task_ids: Sequence[str] | None
    methods: frozenset[str]


class EnvHost:
    """The environments of one process.

    Those of one kind share what they share in any process: EH-BFCL's worker processes, EH-AppWorld's warm one.
    """

    def __init__(self) -> None:
        self._envs: dict[int, gym.Env[str, str]] = {}
        self._first: dict[str, Any] = {}  # of each kind, an environment that is never played

    def about(self, kind: EnvKind) -> About:
        """Makes one environment of a kind, and tells what it is.

        Raises:
            Exception: What making it raised, such as MissingBackendError.
        """
        env = self._known(kind)
        methods = frozenset(name for name in _METHODS if callable(getattr(env, name, None)))
        return About(env.observation_space, env.action_space, env.metadata, getattr(env, "task_ids", None), methods)

    def reset(
        self, key: int, kind: EnvKind, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[str, dict[str, Any]]:
        """Resets the environment of a key, which is made at its first reset."""
        if key not in self._envs:
            self._envs[key] = kind.make()
        return self._envs[key].reset(seed=seed, options=options)

    def step(self, key: int, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Steps the environment of a key."""
        return self._envs[key].step(action)

    def expert(self, key: int) -> str:
        """What the environment's expert would do."""
        env: Any = self._envs[key].unwrapped
        return str(env.expert())

    def random_action(self, key: int, rng: np.random.Generator) -> tuple[str, Any]:
        """A random action, and the state in which drawing it has left the generator."""
        env: Any = self._envs[key].unwrapped
        return env.random_action(rng), rng.bit_generator.state

    def prepare(self, kind: EnvKind, task_ids: Sequence[str]) -> None:
        """Tells the environments of a kind what will be played here next."""
        self._known(kind).prepare(task_ids)

    def close(self, key: int) -> None:
        """Closes the environment of a key, if there is one."""
        env = self._envs.pop(key, None)
        if env is not None:
            env.close()

    def _known(self, kind: EnvKind) -> Any:
        if kind.name not in self._first:
            self._first[kind.name] = kind.make().unwrapped
        return self._first[kind.name]
