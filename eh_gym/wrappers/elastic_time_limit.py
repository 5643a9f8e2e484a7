"""Stops an episode after K steps, where K comes from a horizon controller."""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Text
from gymnasium.utils import RecordConstructorArgs

from eh_gym.answers import is_verdict, reset_fault, step_fault
from eh_gym.checked import accepts, place
from eh_gym.errors import ConfigError, UserCodeError
from eh_gym.horizon.checks import positive_int
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, MadeIn, check_controller, episode_horizon
from eh_gym.rewards import earned

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")
SuccessRule = Callable[[Any, float, bool, bool, dict[str, Any]], bool]


class ElasticTimeLimit(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Gives every episode the budget that the controller has at its reset, and tells the controller how it ended.

    An episode that does not end within K steps is truncated, and earns its sum or 0, whichever is less: its last reward
    takes back what is above 0 (Elastic Horizon paper, Sec. 3.2; Algorithm 2, lines 8 to 16, where rewards are 0 or 1).
    So does an episode that the environment's own limit or an error stops. A running episode keeps its K. A controller's
    ``horizon_for`` decides each episode's K from the info and the seed of the reset (see `KeyedHorizon`). Episodes that
    are reset before their end, or have ``info["environment_error"]``, are not recorded.

    Every info gets ``info["horizon"]``, the episode's K: an int if observations are texts, else an ``np.int64``, which
    TorchRL's ``auto_register_info_dict`` needs. The last step's info gets ``info["outcome"]`` = ``{"length", "horizon",
    "success", "truncated"}``, with the ``"task_id"`` if the reset's info names it. It also gets
    ``info["TimeLimit.truncated"]``, whether K stopped it; Stable-Baselines3 then bootstraps the value of the last
    observation.

    Gymnasium's `RecordEpisodeStatistics` and the `Monitor` of Stable-Baselines3 go outside this wrapper, and wrappers
    that change rewards inside. docs/own-agent.md has a table.

    Args:
        env: Any environment, text or not.
        controller: Decides K. Several environments of one process may share it. If environments run in other processes,
            wrap it in a `SharedHorizon`; otherwise they record into copies.
        success: How to read the verdict (a bool, or 0 or 1) of an episode: a key of the info, or a function. With a
            key, an episode that was stopped is no success. A function is asked at every end, also if K stopped the
            episode, and gets ``(observation, reward, terminated, truncated, info)`` of the last step, with the
            environment's own reward. For a task of survival, which succeeds by lasting until K, pass
            ``lambda observation, reward, terminated, truncated, info: not terminated``.
        update_every: Call ``controller.update()`` after this number of episodes of this environment; None if your code
            calls it, as the training harness does.
        record: Whether the controller is told how episodes end. False for evaluations, which must not move K.
        zero_reward_on_truncation: False leaves the rewards of a stopped episode as they are, for dense rewards.

    Attributes:
        recorded: The count of episodes for `update_every`. Environments may share it.

    Raises:
        ConfigError: An argument is wrong, an episode ended and no success can be read, or ``spec.to_json()`` was
            called.
        UserCodeError: An answer of the environment breaks the rules of `eh_gym.answers`.
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
        check_controller(controller)
        if not (isinstance(success, str) or callable(success)):
            raise ConfigError(
                f"success must be a key of the info or a function, got {success!r}; the default is 'success'"
            )
        if callable(success) and not accepts(success, None, 0.0, True, False, {}):
            raise ConfigError(
                f"success must take (observation, reward, terminated, truncated, info), got {success!r}; "
                "write success=lambda observation, reward, terminated, truncated, info: ..."
            )
        for name, flag in (("record", record), ("zero_reward_on_truncation", zero_reward_on_truncation)):
            if not isinstance(flag, (bool, np.bool_)):
                raise ConfigError(f"{name} must be True or False, got {flag!r}")
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
        self._rule = success if callable(success) else None
        self._update_every = update_every
        self._record = record
        self._keep = not zero_reward_on_truncation
        self._horizon = 0
        self._left = 0  # steps until K; 0 where no episode is running
        # The reward of the step before, how many steps were left when such rewards began, and the sum of earlier ones.
        self._same, self._since, self._earned = 0.0, 0, 0.0
        self._start: dict[str, Any] = {}  # the info of the reset
        # JSON, the log format of text agents, has no numpy numbers.
        self._in_info: Callable[[int], Any] = int if isinstance(env.observation_space, Text) else np.int64
        self._shown: Any = 0  # K as the infos show it
        self.recorded = EpisodeCount()
        self._held: list[EpisodeOutcome] | None = None  # None if outcomes are told at once
        self._has_recorded = False
        # Stopped episodes until a warning that the info lacks the key; <= 0 for no warning. In text environments, only
        # ended episodes have the key, and the first episodes seldom end.
        self._unread = 8 if isinstance(env.observation_space, Text) else 1
        self._own_limit_noted = False
        self._dropped_after = 0  # the steps of the last episode that was dropped

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # gymnasium's Env has an attribute, its Wrapper a property
        """The spec with this wrapper. ``gymnasium.make`` uses the same controller again."""
        spec = super().spec
        return spec and _SpecWithController(
            **{field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.init}
        )

    @property
    def horizon(self) -> int:
        """The K of the running, or the last, episode; 0 before the first."""
        return self._horizon

    def __deepcopy__(self, memo: dict[int, Any]) -> ElasticTimeLimit[ObsType, ActType]:
        """A copy of the environment around the same controller."""
        twin: ElasticTimeLimit[ObsType, ActType] = object.__new__(type(self))
        memo |= {id(self): twin, id(self.controller): self.controller}
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def hold_outcomes(self) -> None:
        """Keeps outcomes back until `tell_outcomes`, so that a vector environment can order them."""
        self._held = []

    def tell_outcomes(self) -> None:
        """Tells the controller the outcomes that were kept back, and later ones at once."""
        held, self._held = self._held or [], None
        for outcome in held:
            self._tell(outcome)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Starts an episode and fixes its K. A running episode is dropped and not recorded."""
        if self._left and self._record:
            self._note_outer_limit()
        self._left = 0  # so that the old episode ends if the reset fails
        answer = self.env.reset(seed=seed, options=options)
        if fault := reset_fault(answer, text=False):
            raise UserCodeError(f"{place(None, 0)}: {fault}")
        observation, info = answer
        k = episode_horizon(self.controller, info, seed)
        if k != self._horizon:
            self._horizon, self._shown = k, self._in_info(k)
        self._start = start = info.copy()
        start["horizon"] = self._shown
        self._left, self._since, self._earned = k, k, 0.0
        return observation, start.copy()

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps, and stops the episode if this was step K."""
        left = self._left
        if left > 1:
            step = self.env.step(action)
            try:
                _, reward, terminated, truncated, info = step
                # Most rewards are the object of the step before, which has been checked. They are summed later.
                if reward is self._same and terminated is False and truncated is False:
                    info["horizon"] = self._shown  # a copy would cost more than all the rest
                    self._left = left - 1
                    return step
            except (TypeError, ValueError):
                pass  # the fault has a sentence
            return self._checked(step)
        if not left:
            raise gym.error.ResetNeeded("the episode has ended, or none has begun; call reset() before step()")
        step = self.env.step(action)
        try:
            _, reward, terminated, truncated, info = step
            known = reward is self._same and terminated is False and truncated is False and type(info) is dict
        except (TypeError, ValueError):
            known = False
        return self._end(step, 1) if known else self._checked(step)

    def _checked(self, step: Any) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Checks a step, and ends the episode if this was its last one."""
        left = self._left
        if fault := step_fault(step, text=False):
            raise UserCodeError(f"{place(self._start.get('task_id'), self._horizon - left + 1)}: {fault}")
        observation, reward, terminated, truncated, info = step
        if left == 1 or terminated or truncated:
            return self._end(step, left)
        own = float(reward)
        self._earned += self._same * (self._since - left) + own
        self._same, self._since = reward if type(reward) in (float, int) else own, left - 1
        self._left, info["horizon"] = left - 1, self._shown
        return observation, reward, terminated, truncated, info

    def _end(self, step: Any, left: int) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = step
        horizon = self._horizon
        steps, self._left = horizon - left + 1, 0
        before, own = self._earned + self._same * (self._since - left), float(reward)
        terminated, truncated = terminated is not False and bool(terminated), truncated is not False and bool(truncated)
        failed = "environment_error" in info
        cut = left == 1 and not terminated
        stopped = not terminated  # TimeLimit also truncates an end on its last step
        if stopped and not (cut or failed or self._own_limit_noted):
            self._note_own_limit()
        truncated = truncated or cut
        success: Any
        if self._rule is None or failed:
            success = not failed and self._read_verdict(terminated, info)
        else:
            success = self._rule(observation, own, terminated, truncated, info)
            if success is not True and success is not False:
                success = _as_bool("success()", success)
        total = before + own
        if total > 0:  # what is not above 0 is never taken back
            kept = earned(total, ended=terminated and not failed, keep=self._keep)
            reward = reward if kept == total else kept - before
        summary = {"length": steps, "horizon": horizon, "success": success, "truncated": stopped}
        task_id = self._start.get("task_id")
        if task_id is not None:
            summary["task_id"] = task_id
        if self._record and not failed:
            named = None if task_id is None else str(task_id)
            outcome = EpisodeOutcome(steps, horizon, success, stopped, named, self._start)
            if self._held is not None:
                self._held.append(outcome)
            elif self._has_recorded and self._update_every is None:
                self.controller.record(outcome)
            else:
                self._tell(outcome)
        # An inner wrapper may have set it.
        limit = (cut and not failed) or bool(info.get("TimeLimit.truncated"))
        info = info.copy()  # the environment may return this dict again
        info["horizon"], info["outcome"], info["TimeLimit.truncated"] = self._shown, summary, limit
        return observation, reward, terminated, truncated, info

    def _note_own_limit(self) -> None:
        self._own_limit_noted = True
        spec = self.env.spec
        how = f" of {spec.max_episode_steps} steps" if spec and spec.max_episode_steps else ""
        warnings.warn(
            f"the environment's own limit{how} stops episodes before K does; make it larger, or leave it out "
            "(gym.make(..., max_episode_steps=-1))",
            stacklevel=5,
        )

    def _note_outer_limit(self) -> None:
        steps, before = self._horizon - self._left, self._dropped_after
        self._dropped_after = steps
        if steps == before > 1:  # environment checkers reset after one step
            warnings.warn(
                f"two episodes were reset after {steps} steps, before their end, so the controller does not hear of "
                "them; if a TimeLimit outside ElasticTimeLimit stops them, give it k_max or more steps",
                stacklevel=3,
            )

    def _tell(self, outcome: EpisodeOutcome) -> None:
        controller = self.controller
        if self._has_recorded:
            pass
        elif isinstance(controller, MadeIn) and controller.made_in != os.getpid():
            warnings.warn(
                f"this environment records in process {os.getpid()} with a copy of the {type(controller).__name__} "
                f"that process {controller.made_in} made: the original does not get these episodes, so its K does not "
                "follow them. Wrap it in eh_gym.SharedHorizon before the environments are made, or keep them in one "
                "process (eh_gym.make_vec). Where a controller was pickled to a file, save its state_dict() instead",
                stacklevel=4,
            )
        elif self._is_registered_copy():
            warnings.warn(
                f"gymnasium has copied the {type(controller).__name__} of gym.register, which does not get these "
                "episodes; give its class def __deepcopy__(self, memo): return self",
                stacklevel=4,
            )
        self._has_recorded = True
        controller.record(outcome)
        if self._update_every is not None and self.recorded.add() % self._update_every == 0:
            controller.update()

    def _is_registered_copy(self) -> bool:
        spec, controller = self.env.unwrapped.spec, self.controller
        registered = gym.registry.get(spec.id) if spec and not hasattr(controller, "__deepcopy__") else None
        given = registered.kwargs.values() if registered else ()
        return any(type(one) is type(controller) and one is not controller for one in given)

    def _read_verdict(self, terminated: bool, info: dict[str, Any]) -> bool:
        if self._success not in info:
            advice = "pass success=KEY or success=lambda obs, reward, terminated, truncated, info: ..."
            if terminated:
                raise ConfigError(
                    f"the episode ended and its info has no {self._success!r} (it has {sorted(info)}); {advice}"
                )
            self._unread -= 1
            if self._unread == 0 and self._record:
                warnings.warn(
                    f"the episode was stopped and its info has no {self._success!r} (it has {sorted(info)}), so the "
                    "controller hears of a failure, as it will of every further one that is stopped. If your "
                    f"environment never says {self._success!r}, {advice}; if it does when its own rules end an "
                    "episode, this is right",
                    stacklevel=4,
                )
            return False
        self._unread = 0
        if not terminated:
            return False
        return _as_bool(f"info[{self._success!r}]", info[self._success])


class EpisodeCount:
    """A count of recorded episodes. Thread-safe."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def add(self) -> int:
        """Counts one more; returns the new number."""
        with self._lock:
            self._count += 1
            return self._count

    def __getstate__(self) -> dict[str, int]:
        return {"count": self._count}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._count, self._lock = state["count"], threading.Lock()


class _SpecWithController(EnvSpec):
    """A spec whose copies have the same controller. JSON cannot hold it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _SpecWithController:
        for wrapper in self.additional_wrappers:  # gymnasium copies the spec for each wrapper further out
            if controller := (wrapper.kwargs or {}).get("controller"):
                memo[id(controller)] = controller
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        return _SpecWithController(**copy.deepcopy(fields, memo))

    def to_json(self) -> NoReturn:
        raise ConfigError(
            "a spec with ElasticTimeLimit holds its controller, which JSON cannot; save env.unwrapped.spec.to_json() "
            "and controller.state_dict(), and wrap the environment again"
        )


def _as_bool(source: str, verdict: Any) -> bool:
    if verdict is True or verdict is False:
        return verdict
    value = verdict.item() if isinstance(verdict, np.ndarray) and verdict.size == 1 else verdict
    if is_verdict(value):
        return bool(value)
    raise ConfigError(
        f"{source} must say whether the episode succeeded, True or False (or 0 or 1), got {verdict!r}; pass "
        "success=lambda observation, reward, terminated, truncated, info: ..., which makes a bool of it"
    )
