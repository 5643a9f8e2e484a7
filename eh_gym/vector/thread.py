"""ThreadVectorEnv: environments stepped in threads, all at once or one slot at a time.

A slot that has ended waits for its reset (AutoresetMode.DISABLED). With automatic resets, an explicit reset would be
followed by another one, which changes the task of a group silently. An environment that needs a process of its own uses
eh_gym.worker, and a thread waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import is_whole
from eh_gym.vector.lanes import Lanes

__all__ = ["ThreadVectorEnv"]

_MOST_THREADS = 64
ResetResult = tuple[Any, dict[str, Any]]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class ThreadVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """Environments of one kind, each in a slot; the calls of a slot are serial, different slots run side by side.

    As a ``gymnasium.vector.VectorEnv`` it behaves like ``SyncVectorEnv(..., autoreset_mode=AutoresetMode.DISABLED)``,
    masked resets included. A slot that has ended must be reset before the next batched ``step``; as in gymnasium,
    stepping it is an error, and here no other slot moves when that happens.

    ``submit_reset`` and ``submit_step`` address one slot and return a future at once. A slot that was asked twice does
    the second call after the first. What one slot raises reaches its own future only; the slot then needs a reset. The
    two ways may be mixed, but a batched call is refused while a future of the slot interface is not done.

    Args:
        env_fns: Functions that build the environments, called one after the other here.
        max_workers: Threads, by default one for each slot, 64 at most. 0 steps in the caller's thread: for an
            environment whose steps take microseconds, threads are slower.

    Raises:
        ConfigError: No environments, one environment in two slots, spaces that differ, or a bad ``max_workers``.

    Example:
        >>> envs = ThreadVectorEnv([lambda: gym.make("eh_gym:EH-Cabinet-v0", split="dev")] * 2)
        >>> observations, infos = envs.reset(options={"task_ids": ["dev-000001", "dev-000002"]})
        >>> observations, rewards, terminations, truncations, infos = envs.step(("list()", "open(z)"))
        >>> observations, rewards, infos["malformed"]
        (('closed', 'error'), array([0., 0.]), array([False,  True]))
        >>> envs.submit_step(1, "list()").result()[0]
        'closed'
        >>> envs.close()
    """

    def __init__(self, env_fns: Iterable[Callable[[], gym.Env[Any, Any]]], max_workers: int | None = None) -> None:
        super().__init__()
        self.env_fns = tuple(env_fns)
        if not self.env_fns:
            raise ConfigError("env_fns must have at least one function, got none")
        if max_workers is None:
            max_workers = min(len(self.env_fns), _MOST_THREADS)
        elif not is_whole(max_workers) or max_workers < 0:
            raise ConfigError(
                f"max_workers must be a whole number >= 0 (0: in the caller's thread), got {max_workers!r}"
            )
        self.envs: list[gym.Env[Any, Any]] = []
        try:
            for env_fn in self.env_fns:
                self.envs.append(env_fn())
            self._require_one_each()
            self._require_same_spaces()
        except BaseException:
            for env in self.envs:
                env.close()
            raise
        self.num_envs = len(self.envs)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = self.envs[0].render_mode
        self.single_action_space = self.envs[0].action_space
        self.single_observation_space = self.envs[0].observation_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._lanes = Lanes(self.num_envs, max_workers)
        # Threads end in any order, but the controller hears of the episodes of a batched step in the order of the slots.
        self._limits = [env for env in self.envs if max_workers and env.has_wrapper_attr("tell_outcomes")]
        self._live = [False] * self.num_envs  # has an episode that can be stepped
        # Zeros, or empty texts, until a slot's first reset: what a masked reset shows of the others.
        self._latest: list[Any] = list(iterate(self.observation_space, self._empty_batch()))

    # One slot at a time

    def submit_reset(
        self, slot: int, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Future[ResetResult]:
        """Resets one slot after the calls that it still has to do.

        Args:
            slot: 0 .. num_envs - 1.
            seed: As for ``gymnasium.Env.reset``.
            options: As for ``gymnasium.Env.reset``, such as ``{"task_id": ...}``.

        Returns:
            A future of ``(observation, info)``.
        """
        return self._lanes.submit(self._slot(slot), self._reset_slot, slot, seed, options)

    def submit_step(self, slot: int, action: Any) -> Future[StepResult]:
        """Steps one slot after the calls that it still has to do.

        Returns:
            A future of ``(observation, reward, terminated, truncated, info)``; of ``gymnasium.error.ResetNeeded`` if by
            then the slot's episode has ended or failed, or none has begun.
        """
        return self._lanes.submit(self._slot(slot), self._step_slot, slot, action)

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self.num_envs:
            raise ConfigError(f"slot must be in 0 .. {self.num_envs - 1}, got {slot}")
        return slot

    def _reset_slot(self, slot: int, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        self._live[slot] = False
        observation, info = self.envs[slot].reset(seed=seed, options=options)
        self._latest[slot], self._live[slot] = observation, True
        return observation, info

    def _step_slot(self, slot: int, action: Any) -> StepResult:
        if not self._live[slot]:
            raise ResetNeeded(f"slot {slot} has no running episode; reset it before its next step")
        self._live[slot] = False
        observation, reward, terminated, truncated, info = self.envs[slot].step(action)
        self._latest[slot], self._live[slot] = observation, not (terminated or truncated)
        return observation, float(reward), terminated, truncated, info

    # All slots at once

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all slots, or those in a mask, side by side.

        Args:
            seed: One seed a slot, or an int for seed, seed + 1, ... by slot number, or None.
            options: ``"reset_mask"``: bool array (num_envs,); the other slots stay as they are. ``"task_ids"``:
                num_envs ids (None: let the seed draw), handed out as each slot's ``"task_id"``; those of slots outside
                the mask are not looked at. Everything else goes to every environment. The dict stays as it is.

        Returns:
            The batched observations, of slots outside the mask the last ones again, and the infos of the slots reset.

        Raises:
            ConfigError: A mask, list of seeds or list of ids has the wrong length or type.
        """
        self._require_idle("reset")
        seeds = self._seeds(seed)
        mask, slot_options = self._split_options(options)
        slots = [slot for slot in range(self.num_envs) if mask[slot]]
        results = self._gather([self.submit_reset(i, seed=seeds[i], options=slot_options[i]) for i in slots])
        infos: dict[str, Any] = {}
        for slot, (_, info) in zip(slots, results, strict=True):
            infos = self._add_info(infos, info, slot)
        return self._batch(), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Steps all slots side by side.

        Args:
            actions: One action a slot, batched as in ``action_space``; for text a sequence of str.

        Returns:
            Observations, rewards (num_envs,) float64, terminations and truncations (num_envs,) bool, infos.

        Raises:
            gymnasium.error.ResetNeeded: A slot has no running episode; then no slot has moved.
            ConfigError: There are not num_envs actions.
            Exception: What the first failing slot raised, after all others have done their step.
        """
        self._require_idle("step")
        ended = [slot for slot, live in enumerate(self._live) if not live]
        if ended:
            mask = 'reset(options={"reset_mask": terminations | truncations})'
            raise ResetNeeded(f"slots {ended} have no running episode; {mask} resets those that a step has ended")
        if isinstance(actions, str):
            raise ConfigError(
                f"expected {self.num_envs} actions, one a slot, got the one text {actions!r}; pass a list"
            )
        each = list(iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            raise ConfigError(f"expected {self.num_envs} actions, one a slot, got {len(each)}")
        for env in self._limits:
            env.get_wrapper_attr("hold_outcomes")()
        try:
            results = self._gather([self.submit_step(slot, action) for slot, action in enumerate(each)])
        finally:
            with contextlib.ExitStack() as tellings:  # one that fails keeps no other back
                for env in reversed(self._limits):
                    tellings.callback(env.get_wrapper_attr("tell_outcomes"))
        infos: dict[str, Any] = {}
        for slot, result in enumerate(results):
            infos = self._add_info(infos, result[4], slot)
        rewards = np.array([result[1] for result in results], dtype=np.float64)
        terminations = np.array([result[2] for result in results], dtype=np.bool_)
        truncations = np.array([result[3] for result in results], dtype=np.bool_)
        return self._batch(), rewards, terminations, truncations, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or reads an attribute that is not callable; one result a slot.

        Each slot does it after the calls that it still has to do.
        """

        def on(env: gym.Env[Any, Any]) -> Any:
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return tuple(self._gather([self._lanes.submit(slot, on, env) for slot, env in enumerate(self.envs)]))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Reads an attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment: a list or tuple has one value a slot, anything else is for all."""
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"expected {self.num_envs} values, one a slot, got {len(each)}")
        lanes = self._lanes
        self._gather([lanes.submit(i, env.set_wrapper_attr, name, each[i]) for i, env in enumerate(self.envs)])

    def render(self) -> tuple[Any, ...]:
        """What every environment renders."""
        return self.call("render")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as SyncVectorEnv has it
        """The generators of the environments."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments."""
        return self.get_attr("np_random_seed")

    def close_extras(self, **_: Any) -> None:
        """Cancels calls that have not begun, waits for those that have, and closes every environment."""
        self._lanes.close()
        errors: list[Exception] = []
        for env in self.envs:
            try:
                env.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # Checks and batching

    def _require_one_each(self) -> None:
        slot_of: dict[int, int] = {}
        for slot, env in enumerate(self.envs):
            first = slot_of.setdefault(id(env.unwrapped), slot)
            if first != slot:
                raise ConfigError(
                    f"slots {first} and {slot} have the same environment, {env.unwrapped!r}, whose episodes would mix; every "
                    'function of env_fns must make a new one, such as lambda: gym.make("EH-Cabinet-v0")'
                )

    def _require_same_spaces(self) -> None:
        for kind in ("observation_space", "action_space"):
            first = getattr(self.envs[0], kind)
            for slot, env in enumerate(self.envs):
                if getattr(env, kind) != first:
                    raise ConfigError(
                        f"every environment needs the same {kind}; slot 0 has {first}, slot {slot} has "
                        f"{getattr(env, kind)}; put different kinds into vector environments of their own"
                    )

    def _require_idle(self, name: str) -> None:
        busy = [slot for slot in range(self.num_envs) if self._lanes.unanswered(slot)]
        if busy:
            message = f"{name}() moves every slot, but slots {busy} have calls in flight; wait for their futures first"
            raise AlreadyPendingCallError(message, name)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + slot for slot in range(self.num_envs)]
        given: Any = seed  # anything may come, such as a text
        if not isinstance(given, (Sequence, np.ndarray)) or isinstance(given, str) or len(given) != self.num_envs:
            raise ConfigError(f"expected an int, None or {self.num_envs} seeds, one a slot, got {given!r}")
        return [None if one is None else int(one) for one in given]

    def _split_options(self, options: Mapping[str, Any] | None) -> tuple[NDArray[Any], list[dict[str, Any] | None]]:
        """Which slots to reset, and the options of each."""
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        if options is None:
            return everyone, [None] * self.num_envs
        if not isinstance(options, Mapping):
            raise ConfigError(f"options must be a dict, such as {{'task_ids': [...]}}, got {options!r}")
        shared = dict(options)
        mask = shared.pop("reset_mask", everyone)
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ConfigError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},), got {mask!r}")
        if not mask.any():
            raise ConfigError("options['reset_mask'] must be True for at least one slot, got none")
        task_ids = shared.pop("task_ids", None)
        if task_ids is None:
            return mask, [dict(shared) for _ in range(self.num_envs)]
        if "task_id" in shared:
            raise ConfigError("expected options['task_id'] (one for all) or options['task_ids'] (one a slot), got both")
        if (
            not isinstance(task_ids, (Sequence, np.ndarray))
            or isinstance(task_ids, str)
            or len(task_ids) != self.num_envs
        ):
            raise ConfigError(f"options['task_ids'] must have {self.num_envs} ids, one a slot, got {task_ids!r}")
        return mask, [shared | ({} if task_id is None else {"task_id": task_id}) for task_id in task_ids]

    def _gather(self, futures: Sequence[Future[Any]]) -> list[Any]:
        """The results of all, once all are done; if some failed, raises the exception of the lowest slot."""
        errors = [(slot, error) for slot, future in enumerate(futures) if (error := future.exception()) is not None]
        if errors:
            raise errors[0][1]
        return [future.result() for future in futures]

    def _empty_batch(self) -> Any:
        return create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)

    def _batch(self) -> Any:
        return concatenate(self.single_observation_space, self._latest, self._empty_batch())
