"""A text environment as an object with one tool, for TRL's ``environment_factory``."""

from typing import Any

import gymnasium as gym

from eh_gym.rewards import result_of
from eh_gym.surrogates import escaped

__all__ = ["ToolEnvironment"]


class ToolEnvironment:
    """Plays any environment with text actions through a method that a model can call.

    >>> import eh_gym
    >>> environment = ToolEnvironment("EH-Cabinet-v0")
    >>> start = environment.reset(seed=0)
    >>> environment.act("open(z)"), environment.ended, environment.steps
    ('error', False, 1)

    Args:
        env_id: The id that `gymnasium.make` takes.
        make_args: Further arguments for `gymnasium.make`.

    Attributes:
        ended: Whether the episode has ended.
        cut: Whether the environment's own limit stopped it.
        success: The environment's verdict; None before the end, and if it gives none.
        steps: The number of actions in this episode.
    """

    def __init__(self, env_id: str, **make_args: Any) -> None:
        self._env = gym.make(env_id, **make_args)
        self._score: float | None = 0.0
        self.ended = self.cut = False
        self.success: bool | None = None
        self.steps = 0

    def reset(self, task_id: str | None = None, seed: int | None = None, **_: Any) -> str:
        """Starts an episode; returns the environment's rules and its first observation."""
        self.ended, self.cut, self.success, self.steps, self._score = False, False, None, 0, 0.0
        observation, info = self._env.reset(seed=seed, options=None if task_id is None else {"task_id": task_id})
        return escaped(f"{info.get('system_prompt', '')}\n\n{observation}".strip())

    def act(self, action: str) -> str:
        """Sends one action to the environment.

        Args:
            action: The text of the action.

        Returns:
            The answer of the environment.
        """
        if self.ended:
            return "The episode has ended."
        observation, reward, terminated, truncated, info = self._env.step(str(action))
        self.steps += 1
        self.ended, self.cut = bool(terminated or truncated), bool(truncated and not terminated)
        verdict = info.get("success") if terminated else None
        self.success = None if verdict is None else result_of(0.0, ended=True, verdict=verdict).success
        if "environment_error" in info:
            self._score = None  # the episode says nothing about the agent
        elif self._score is not None:
            self._score += float(reward)
        return escaped(str(observation))

    def get_reward(self) -> float | None:
        """The episode's return; None if the environment failed."""
        return self._score
