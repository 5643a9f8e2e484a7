"""Stops an episode after K steps, where K comes from a horizon controller.

Left out: telling the agent how many steps are left (that changes the observations; see `BudgetHint`), and autoreset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon, is_controller
from eh_gym.horizon.schedules import positive_int

__all__ = ["ElasticTimeLimit"]

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")
SuccessRule = Callable[[Any, float, bool, bool, dict[str, Any]], bool]


class ElasticTimeLimit(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Gives every episode the budget that the controller has at its reset, and tells the controller how it ended.

    An episode that reaches K steps without ending is truncated with reward 0 (Elastic Horizon paper, Sec. 3.2; Algorithm 2,
    lines 8 to 16); one that ends on step K has ended. A running episode keeps its K. A controller with ``horizon_for`` is
    asked for each episode's K, with the info and the seed of its reset (see `KeyedHorizon`, `ProbedHorizon`). An episode that
    is reset before its end is dropped: it is not recorded. Nor is one with ``info["environment_error"]``, which says nothing
    about the agent.

    The reset's info gets ``info["horizon"]``, the episode's K. The last step's info gets ``info["episode"]`` =
    ``{"length", "horizon", "success", "truncated", "task_id", "r", "l"}`` (r: the return, l: the length), added to what an
    inner wrapper put there, and ``info["TimeLimit.truncated"]``: whether K stopped it. The environment's own info is left as
    it is.

    Stable-Baselines3 logs r and l, and bootstraps the value of the last observation where ``TimeLimit.truncated`` is true.
    Its `Monitor` replaces ``info["episode"]``, and gymnasium's `RecordEpisodeStatistics` fails where there is one: put
    them inside this wrapper, give the latter another ``stats_key``, or leave them out. What the controller hears is the same
    in every order.

    Args:
        env: Any environment, text or not.
        controller: Where K comes from. Several environments of one process may share it; in other processes each has a copy,
            which nobody hears, so wrap it in a `SharedHorizon` there.
        success: Where the verdict of an ended episode stands: a key of the info, or a function of
            ``(observation, reward, terminated, truncated, info)``. A truncated episode is never a success.
        update_every: Call ``controller.update()`` after so many episodes of this environment; None if somebody else does,
            as the training harness does once an update.
        record: Tell the controller how episodes end. False if the owner does it, in an order of its own.
        zero_reward_on_truncation: False keeps the environment's reward on step K, for dense rewards.

    Raises:
        ConfigError: An argument is wrong, or an episode ended and no success can be read.
        gymnasium.error.ResetNeeded: `step` was called after the end, or before the first reset.

    >>> from eh_gym.horizon import FixedHorizon
    >>> env = ElasticTimeLimit(gym.make("CartPole-v1"), FixedHorizon(3), success=lambda *step: False)
    >>> _ = env.reset(seed=0)
    >>> [env.step(0)[3] for _ in range(3)]
    [False, False, True]
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        controller: HorizonController,
        *,
        success: str | SuccessRule = "success",
        update_every: int | None = None,
        record: bool = True,
        zero_reward_on_truncation: bool = True,
    ) -> None:
        if not is_controller(controller):
            raise ConfigError(
                f"controller must have horizon, record, update, state_dict and load_state_dict, got {controller!r}; "
                "eh_gym.FixedHorizon(K) is the simplest"
            )
        if not (isinstance(success, str) or callable(success)):
            raise ConfigError(
                f"success must be a key of the info or a function, got {success!r}; the default is 'success'"
            )
        if update_every is not None and positive_int("update_every", update_every) and not record:
            raise ConfigError(
                f"update_every needs record=True, got {update_every} with record={record}; "
                "use update_every=None if somebody else updates the controller"
            )
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            controller=controller,
            success=success,
            update_every=update_every,
            record=record,
            zero_reward_on_truncation=zero_reward_on_truncation,
        )
        gym.Wrapper.__init__(self, env)
        self.controller = controller
        self._success = success
        self._update_every = update_every
        self._record = record
        self._zero_reward = zero_reward_on_truncation
        self._horizon = 0
        self._left = 0  # steps until K; 0 where no episode is running
        self._return = 0.0
        self._start: dict[str, Any] = {}  # the info of the reset
        self._episodes = 0

    @property
    def horizon(self) -> int:
        """The K of the running, or the last, episode; 0 before the first."""
        return self._horizon

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Starts an episode and latches its K. A running episode is dropped, unrecorded."""
        self._left = 0  # should the environment's reset fail, the old episode must not go on
        observation, info = self.env.reset(seed=seed, options=options)
        self._horizon = episode_horizon(self.controller, info, seed)
        self._start = {**info, "horizon": self._horizon}
        self._left, self._return = self._horizon, 0.0
        return observation, dict(self._start)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps, and stops the episode if this was step K."""
        left = self._left - 1
        if left < 0:
            raise gym.error.ResetNeeded("the episode has ended, or none has begun; call reset() before step()")
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated or not left:
            return self._end(observation, reward, bool(terminated), bool(truncated), info)
        self._left = left
        if reward:  # sparse rewards are nearly all zeros, and this line is a fifth of the wrapper's cost
            self._return += float(reward)
        return observation, reward, terminated, truncated, info

    def _end(
        self, observation: ObsType, reward: SupportsFloat, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        steps, self._left = self._horizon - self._left + 1, 0
        failed = "environment_error" in info
        cut = steps == self._horizon and not terminated
        stopped = cut and not failed
        truncated = truncated or cut
        if stopped and self._zero_reward:
            reward = 0.0
        self._return += float(reward)
        outcome = EpisodeOutcome(
            length=steps,
            horizon=self._horizon,
            success=terminated and not truncated and self._verdict(observation, float(reward), info),
            truncated=truncated,
            task_id=self._start.get("task_id"),
            info=self._start,
        )
        episode = {
            **info.get("episode", {}),
            "length": outcome.length,
            "horizon": outcome.horizon,
            "success": outcome.success,
            "truncated": outcome.truncated,
            "task_id": outcome.task_id,
            "r": self._return,
            "l": outcome.length,
        }
        if self._record and not failed:
            self.controller.record(outcome)
            self._episodes += 1
            if self._update_every is not None and self._episodes % self._update_every == 0:
                self.controller.update()
        # A mark set further in stands: a limit in there stopped the episode before K did.
        limit = stopped or bool(info.get("TimeLimit.truncated", False))
        return observation, reward, terminated, truncated, {**info, "episode": episode, "TimeLimit.truncated": limit}

    def _verdict(self, observation: ObsType, reward: float, info: dict[str, Any]) -> bool:
        if callable(self._success):
            return bool(self._success(observation, reward, True, False, info))
        if self._success not in info:
            raise ConfigError(
                f"the episode ended and its info has no {self._success!r} (it has {sorted(info)}); pass "
                "ElasticTimeLimit(..., success=KEY) or success=lambda obs, reward, terminated, truncated, info: ..."
            )
        return bool(info[self._success])
