"""Tells the agent in each observation how many steps are left.

It is for texts; `gymnasium.wrappers.TimeAwareObservation` does the same for arrays.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.spaces import Text
from gymnasium.utils import RecordConstructorArgs

from eh_gym.errors import ConfigError
from eh_gym.spaces import UnicodeText

__all__ = ["BudgetHint"]

_MOST = 10**6  # steps; the observation space leaves room for so many


class BudgetHint(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    r"""Appends the number of steps left to every observation but the last (after BATS, budget-aware tool use).

    Put it around the wrapper that sets the limit. It reads that wrapper's `horizon` at each reset. The agent then sees
    K, so a policy that was trained with one K gets other observations under another K.

    Args:
        env: An `ElasticTimeLimit`, or an environment around one, with texts as observations.
        template: What is appended; ``{left}`` and ``{horizon}`` are filled in.

    Raises:
        ConfigError: The observations are not texts, no wrapper inside has a horizon, or the template has other names in
            braces.

    >>> import eh_gym
    >>> env = eh_gym.ElasticTimeLimit(gym.make("EH-Cabinet-v0"), eh_gym.FixedHorizon(3))
    >>> env = BudgetHint(env)
    >>> env.reset(seed=0)[0].split("\n")[-1], env.step("list()")[0], env.step("list()")[0], env.step("list()")[0]
    ('[3 of 3 steps left]', 'closed\n[2 of 3 steps left]', 'closed\n[1 of 3 steps left]', 'closed')
    """

    def __init__(self, env: gym.Env[str, str], template: str = "\n[{left} of {horizon} steps left]") -> None:
        if not isinstance(env.observation_space, Text):
            raise ConfigError(f"env must have texts as observations, got {env.observation_space}")
        try:
            longest = len(template.format(left=_MOST, horizon=_MOST))
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"template may hold {{left}} and {{horizon}} alone, got {template!r}") from error
        RecordConstructorArgs.__init__(self, template=template)
        gym.Wrapper.__init__(self, env)
        if not self.has_wrapper_attr("horizon"):
            raise ConfigError("env has no horizon to tell; wrap it in ElasticTimeLimit first, then in BudgetHint")
        self.observation_space = UnicodeText(env.observation_space.max_length + longest)
        self._template = template
        self._horizon = 0
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode. The first observation says how many steps it may take."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._horizon = self._left = int(self.get_wrapper_attr("horizon"))
        return self._told(observation), info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps, and appends the number of steps left."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._left -= 1
        return observation if terminated or truncated else self._told(observation), reward, terminated, truncated, info

    def _told(self, observation: str) -> str:
        return observation + self._template.format(left=self._left, horizon=self._horizon)
