"""ActorEnv: a text environment that runs in a Ray actor."""

from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Text

from eh_gym.errors import ConfigError, WorkerError
from envs.actors.host import EnvKind
from envs.actors.pool import ActorPool, Seat
from envs.make import registered


def in_actors(env_id: str, pool: ActorPool) -> EnvSpec:
    """A spec from which `gym.make` and `eh_gym.make_vec` make environments that run in the pool.

    `env_id` need not be registered on the nodes, but the module of its class must be installed there.
    """
    spec = registered(env_id)

    def make(**kwargs: Any) -> ActorEnv:
        return ActorEnv(EnvKind(spec, kwargs), pool)

    return EnvSpec(spec.id, entry_point=make, order_enforce=False, disable_env_checker=True, kwargs=spec.kwargs)


class ActorEnv(gym.Env[str, str]):
    """An environment in one of the pool's actors. It may move to another actor between two episodes.

    It has no expert. If the actor is lost during an episode, the episode is truncated with
    ``info["environment_error"]``, and the next reset goes to another actor.

    Raises:
        ConfigError: The environment's observations are not texts.
        MissingBackendError: A node of the pool lacks its backend.
    """

    def __init__(self, kind: EnvKind, pool: ActorPool) -> None:
        about = pool.about(kind)
        if not isinstance(about.observation_space, Text):
            raise ConfigError(
                f"environments in actors must have text observations, {kind.spec.id} has {about.observation_space}; "
                "keep it in this process"
            )
        self.observation_space, self.action_space = about.observation_space, about.action_space
        self.metadata = dict(about.metadata)
        if about.task_ids is not None:
            self.task_ids = about.task_ids
        self._kind, self._pool = kind, pool
        self._seat: Seat | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode. With a seed, it may move to another actor."""
        super().reset(seed=seed)
        self._seat = self._pool.seat(self._seat, stay=seed is None)
        answer: tuple[str, dict[str, Any]] = self._pool.call(self._seat, "reset", self._kind, seed, options)
        return answer

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Takes a step in the actor's environment. The action is never sent twice."""
        if self._seat is None:
            raise gym.error.ResetNeeded("this environment has no running episode; call reset() before step()")
        try:
            answer: tuple[str, SupportsFloat, bool, bool, dict[str, Any]] = self._pool.call(self._seat, "step", action)
        except WorkerError as error:
            text = f"The environment failed, and this episode is over: {error}"
            info = {"environment_error": f"{type(error).__name__}: {error}", "success": False, "malformed": False}
            return text, 0.0, False, True, info
        return answer

    def close(self) -> None:
        if self._seat is not None:
            self._pool.leave(self._seat)
            self._seat = None
