"""ThreadVectorEnv: environments stepped in threads, all at once or one slot at a time."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import is_whole

_MOST_THREADS = 64
ResetResult = tuple[Any, dict[str, Any]]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]
T = TypeVar("T")


class ThreadVectorEnv(SyncVectorEnv):
    """Environments of one kind, each in a slot; different slots run side by side.

    As a ``gymnasium.vector.VectorEnv`` it behaves like ``SyncVectorEnv(..., autoreset_mode=AutoresetMode.DISABLED)``,
    masked resets included. An automatic reset would change the task of a group. Gymnasium's vector
    `NormalizeObservation` needs a ``SyncVectorEnv``. There are no deadlines, because a thread can't be killed.

    ``submit_reset`` and ``submit_step`` address one slot and return a future. A slot takes its next call when this
    future is done. If it has an exception, the slot needs a reset. A batched call is refused while a future is not
    done.

    Args:
        env_fns: Functions that make the environments, called one after the other.
        max_workers: The number of threads, by default one for each slot, 64 at most. 0 steps in the caller's thread,
            which is faster if steps take microseconds.

    Raises:
        ConfigError: No environments, one environment in two slots, or a bad ``max_workers``.
        RuntimeError: The spaces of the environments differ.

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

    envs: list[gym.Env[Any, Any]] = []  # noqa: RUF012 - for `close`, if making them fails
    _pool: ThreadPoolExecutor | None = None

    def __init__(self, env_fns: Iterable[Callable[[], gym.Env[Any, Any]]], max_workers: int | None = None) -> None:
        env_fns = tuple(env_fns)
        if not env_fns:
            raise ConfigError("env_fns must have at least one function, got none")
        if max_workers is None:
            max_workers = min(len(env_fns), _MOST_THREADS)
        elif not is_whole(max_workers) or max_workers < 0:
            raise ConfigError(
                f"max_workers must be a whole number >= 0 (0: in the caller's thread), got {max_workers!r}"
            )
        super().__init__(env_fns, autoreset_mode=AutoresetMode.DISABLED)
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            raise ConfigError(
                "two slots have the same environment, whose episodes would mix; every function of env_fns must make a "
                'new one, such as lambda: gym.make("EH-Cabinet-v0")'
            )
        if max_workers:
            self._pool = ThreadPoolExecutor(max_workers, thread_name_prefix="eh-slot")
        # The outcomes of a batched step are recorded in the order of the slots.
        self._limits = [env for env in self.envs if max_workers and env.has_wrapper_attr("tell_outcomes")]
        self._busy = [False] * self.num_envs  # has a call whose future is not done
        self._live = [False] * self.num_envs  # has an episode that can be stepped
        # Zeros or empty texts until a slot's first reset.
        self._env_obs: list[Any] = list(iterate(self.observation_space, self._observations))

    # One slot at a time

    def submit_reset(
        self, slot: int, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Future[ResetResult]:
        """Resets one slot, 0 .. num_envs - 1. The seed and the options are those of ``gymnasium.Env.reset``.

        Returns:
            A future of ``(observation, info)``.

        Raises:
            gymnasium.error.AlreadyPendingCallError: The slot's last call is not done.
            gymnasium.error.ClosedEnvironmentError: The vector environment is closed.
        """
        return self._submit(slot, "submit_reset", lambda: self._reset_slot(slot, seed, options))

    def submit_step(self, slot: int, action: Any) -> Future[StepResult]:
        """Steps one slot.

        Returns:
            A future of ``(observation, reward, terminated, truncated, info)``; of ``gymnasium.error.ResetNeeded`` if
            the slot has no running episode.

        Raises:
            gymnasium.error.AlreadyPendingCallError: The slot's last call is not done.
            gymnasium.error.ClosedEnvironmentError: The vector environment is closed.
        """
        return self._submit(slot, "submit_step", lambda: self._step_slot(slot, action))

    def submit_call(self, slot: int, method: Callable[[], T]) -> Future[T]:
        """Calls a method of the slot's environment as its next call. Raises as `submit_reset` does."""
        return self._submit(slot, "submit_call", method)

    def _submit(self, slot: int, name: str, call: Callable[[], T]) -> Future[T]:
        if not 0 <= slot < self.num_envs:
            raise ConfigError(f"slot must be in 0 .. {self.num_envs - 1}, got {slot}")
        if self.closed:
            raise ClosedEnvironmentError("this vector environment is closed; build a new one")
        if self._busy[slot]:
            raise AlreadyPendingCallError(f"slot {slot} has a call in flight; wait for its future first", name)

        def run() -> T:
            try:
                return call()
            finally:
                self._busy[slot] = False  # before the future is done, when the slot may get its next call

        self._busy[slot] = True
        if self._pool is not None:
            return self._pool.submit(run)
        future: Future[T] = Future()
        try:
            result = run()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def _reset_slot(self, slot: int, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        self._live[slot] = False
        observation, info = self.envs[slot].reset(seed=seed, options=options)
        self._env_obs[slot], self._live[slot] = observation, True
        return observation, info

    def _step_slot(self, slot: int, action: Any) -> StepResult:
        if not self._live[slot]:
            raise ResetNeeded(f"slot {slot} has no running episode; reset it before its next step")
        self._live[slot] = False
        observation, reward, terminated, truncated, info = self.envs[slot].step(action)
        self._env_obs[slot], self._live[slot] = observation, not (terminated or truncated)
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
            options: ``"reset_mask"``: a bool array (num_envs,), True for the slots to reset. ``"task_ids"``: one id a
                slot (None: the seed draws it). Everything else goes to every environment.

        Returns:
            The batched observations, outside the mask the last ones, and the infos of the slots that were reset.

        Raises:
            ConfigError: A mask, list of seeds or list of ids has the wrong length or type.
        """
        self._require_idle("reset")
        shared = dict(options or {})
        mask = shared.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        fits = isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,) and mask.dtype == np.bool_
        if not fits or not mask.any():
            raise ConfigError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},) with at least one True, got "
                f"{mask!r}"
            )
        each = isinstance(seed, (int, np.integer))
        seeds = [int(seed) + i for i in range(self.num_envs)] if each else self._each("seed", seed)  # type: ignore[arg-type]
        task_ids = self._each("options['task_ids']", shared.pop("task_ids", None))
        futures = {}
        for slot in map(int, np.flatnonzero(mask)):
            task = {} if task_ids[slot] is None else {"task_id": task_ids[slot]}
            given = None if seeds[slot] is None else int(seeds[slot])
            futures[slot] = self.submit_reset(slot, seed=given, options=None if options is None else shared | task)
        infos: dict[str, Any] = {}
        for slot, (_, info) in zip(futures, _gather(futures, "the other slots were reset"), strict=True):
            infos = self._add_info(infos, info, slot)
        return self._batch(), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Steps all slots side by side.

        Args:
            actions: One action a slot, batched as in ``action_space``; for texts a sequence.

        Returns:
            Observations, rewards (num_envs,) float64, terminations and truncations (num_envs,) bool, infos.

        Raises:
            gymnasium.error.ResetNeeded: A slot has no running episode; then no slot has moved.
            ConfigError: There are not num_envs actions.
            Exception: What the first failing slot raised, with a note that names it. It needs a reset. The others
                have done their step, whose results are lost; the controller has heard of their ends.
        """
        self._require_idle("step")
        if ended := [slot for slot, live in enumerate(self._live) if not live]:
            mask = 'reset(options={"reset_mask": terminations | truncations})'
            raise ResetNeeded(f"slots {ended} have no running episode; {mask} resets those that a step has ended")
        each = [actions] if isinstance(actions, str) else list(iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            raise ConfigError(f"expected {self.num_envs} actions, one a slot, got {actions!r}")
        for env in self._limits:
            env.get_wrapper_attr("hold_outcomes")()
        try:
            futures = {slot: self.submit_step(slot, action) for slot, action in enumerate(each)}
            results = _gather(futures, "the others have done their step, whose results are lost")
        finally:
            with contextlib.ExitStack() as tellings:  # a failing slot does not stop the others
                for env in reversed(self._limits):
                    tellings.callback(env.get_wrapper_attr("tell_outcomes"))
        infos: dict[str, Any] = {}
        for slot, result in enumerate(results):
            infos = self._add_info(infos, result[4], slot)
        rewards = np.array([result[1] for result in results], dtype=np.float64)
        terminations = np.array([result[2] for result in results], dtype=np.bool_)
        truncations = np.array([result[3] for result in results], dtype=np.bool_)
        return self._batch(), rewards, terminations, truncations, infos

    def interrupt(self) -> None:
        """Calls ``interrupt`` of environments that have it, so that their calls raise. Only `close` may follow."""
        for env in self.envs:
            if env.has_wrapper_attr("interrupt"):
                env.get_wrapper_attr("interrupt")()

    def close_extras(self, **_: Any) -> None:
        """Cancels waiting calls, interrupts or awaits running ones, and closes every environment."""
        self.interrupt()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        with contextlib.ExitStack() as closings:  # also if one fails
            for env in reversed(self.envs):
                closings.callback(env.close)

    def _require_idle(self, name: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError("this vector environment is closed; build a new one")
        if any(self._busy):
            slots = [slot for slot, busy in enumerate(self._busy) if busy]
            message = f"{name}() moves every slot, but slots {slots} have calls in flight; wait for their futures first"
            raise AlreadyPendingCallError(message, name)

    def _each(self, name: str, given: Any) -> Sequence[Any]:
        if given is None:
            return [None] * self.num_envs
        if not isinstance(given, (Sequence, np.ndarray)) or isinstance(given, str) or len(given) != self.num_envs:
            raise ConfigError(f"{name} must have {self.num_envs} values, one a slot, got {given!r}")
        return list(given)

    def _batch(self) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        return concatenate(self.single_observation_space, self._env_obs, empty)


def _gather(futures: Mapping[int, Future[T]], others: str) -> list[T]:
    """The results by slot. An error of a slot is raised when all are done, with a note that says so of the others."""
    errors = {slot: error for slot, future in futures.items() if (error := future.exception())}
    for slot, error in errors.items():
        error.__notes__ = [*getattr(error, "__notes__", ()), f"slot {slot} raised this and needs a reset; {others}"]
        raise error
    return [future.result() for future in futures.values()]
