"""EH-Cabinet and its variants: a filing cabinet whose notes lead from drawer to drawer to a two-digit code.

A model can learn it from scratch in a minute. There is no step limit here: add one with ElasticTimeLimit.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from eh_gym.errors import ConfigError
from eh_gym.replies import split_reply
from eh_gym.spaces import UnicodeText
from envs.cabinet.tasks import (
    DRAWERS,
    LONGEST_CHAIN,
    LONGEST_LOCKED_CHAIN,
    SPLITS,
    CabinetTask,
    make_task,
    recurring_tasks,
    task_ids,
)
from envs.description import Description
from envs.options import chosen_task

_CALL = re.compile(r"([a-z]+)\(([a-z0-9]*)\)")
_MALFORMED = "error"
_LONGEST_ACTION = 1_000_000  # characters; only the space needs this bound

_RULES = """\
You work at a filing cabinet with 12 drawers, a to l. Only one drawer can be open at a time. The first message names \
the drawer to start with. Each drawer of a chain holds a note: "next f" means that the chain goes on in drawer f, and \
"code 7 3" means that the code is 73; other drawers are empty. Find the code and submit it.

Reply with exactly one call and nothing else:
open(x)     opens drawer x; fails while another drawer is open
read()      reads the note in the open drawer
close()     closes the open drawer
list()      says which drawer is open
{more}submit(NN)  submits the two-digit code NN{end}, so do it only once you know the code

Anything else is answered with "error". Every reply counts as a step; use as few as you can."""


class CabinetEnv(gym.Env[str, str]):
    """The cabinet: 12 drawers, one open at a time, a chain of 1 to 11 notes, a code at its end.

    ======================  ==============================================================
    action                  observation
    ======================  ==============================================================
    (reset)                 ``start c``
    ``open(x)``             ``ok``, or ``error open y`` while drawer y is open
    ``read()``              ``next f``, ``code 7 3`` or ``empty``; ``error closed`` if no drawer is open
    ``close()``             ``ok``, or ``error closed``
    ``list()``              ``open x`` or ``closed``
    ``submit(73)``          ``right`` (reward 1) or ``wrong`` (reward 0); ends the episode
    anything else           ``error``; costs a step, and ``info["malformed"]`` is True
    ======================  ==============================================================

    White space around an action is ignored, and so is a closed thought before it. The expert takes 3 steps for each
    drawer (``info["optimal_steps"]`` at reset). The last step has ``info["success"]``. An environment can be pickled
    and copied during an episode.

    Args:
        split: The split from which a seed draws a task: train, dev, test or all. ``options={"task_id": ...}`` may name
            a task of any split.
        longest: The most drawers of a chain, 1 to 11 (10 with a lock). Longer chains are cut to it.
        tasks: The number of training tasks, 1 to 10,000; None for all. Their lengths have the proportions of the whole
            split. Demonstrations and the other splits keep all tasks.

    Raises:
        ConfigError: An argument is out of range, or a reset names an unknown task.

    Example:
        >>> env = CabinetEnv(split="dev")
        >>> observation, info = env.reset(seed=0)
        >>> done = False
        >>> while not done:
        ...     observation, reward, done, truncated, info = env.step(env.expert())
        >>> observation, reward, info["success"]
        ('right', 1.0, True)
    """

    description: ClassVar = Description(SPLITS, task_ids)
    _has_lock: ClassVar[bool] = False
    _system_prompt: ClassVar[str] = _RULES.format(more="", end=" and ends the task")

    def __init__(self, split: str = "train", longest: int | None = None, tasks: int | None = None) -> None:
        self.demonstrated_ids: Sequence[str] = task_ids(split)
        most = LONGEST_LOCKED_CHAIN if self._has_lock else LONGEST_CHAIN
        if longest is not None and longest not in range(1, most + 1):
            raise ConfigError(f"longest must be 1 to {most} drawers here, got {longest!r}")
        self._longest = int(longest or most)
        few = None if tasks is None else recurring_tasks(tasks, locked=self._has_lock, longest=self._longest)
        self.task_ids = few if few and split == "train" else self.demonstrated_ids
        self.observation_space = UnicodeText(32)
        self.action_space = UnicodeText(_LONGEST_ACTION)
        self._task: CabinetTask | None = None
        self._notes: dict[str, str] = {}
        self._open: str | None = None
        self._read = 0  # the agent has read the notes of chain[:_read] and may act on them
        self._locked: str | None = None
        self._refused = False  # the locked drawer has answered `locked` and has not been unlocked since
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the task of ``options={"task_id": id}``, or without it, one of ``task_ids`` drawn with the seed.

        Returns:
            The observation ``start x``, and the info with ``task_id``, ``system_prompt``, ``instruction`` and
            ``optimal_steps``.
        """
        super().reset(seed=seed)
        self._over = True  # if the task is refused, no episode is running
        task_id = chosen_task(self, options, task_ids("all"), "the id of a cabinet task,")
        task = make_task(task_id, locked=self._has_lock, longest=self._longest)
        chain = task.chain
        self._task = task
        self._notes = {drawer: f"next {following}" for drawer, following in itertools.pairwise(chain)}
        self._notes[chain[-1]] = f"code {task.code[0]} {task.code[1]}"
        self._open, self._read, self._locked, self._refused, self._over = None, 0, task.locked, False, False
        return f"start {chain[0]}", {
            "task_id": task_id,
            "system_prompt": self._system_prompt,
            "instruction": f"Find the code; the first note is in drawer {chain[0]}.",
            "optimal_steps": task.optimal_steps,
        }

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one call. Text that is not a call gets the observation ``error`` and never raises.

        Raises:
            gymnasium.error.ResetNeeded: The episode has ended, or none has begun.
        """
        if self._over:
            raise gym.error.ResetNeeded("this cabinet has no running episode; call reset() before step()")
        match = _CALL.fullmatch(split_reply(action)[1].strip()) if isinstance(action, str) else None
        if match is None:
            return _MALFORMED, 0.0, False, False, {"malformed": True}
        function, argument = match.groups()
        if function == "submit" and argument:
            return self._submit(argument)
        observation = self._call(function, argument)
        return observation, 0.0, False, False, {"malformed": observation == _MALFORMED}

    def _submit(self, code: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._over = True
        success = code == self._current().code
        return "right" if success else "wrong", float(success), True, False, {"malformed": False, "success": success}

    def _call(self, function: str, argument: str) -> str:
        if function == "open" and len(argument) == 1 and argument in DRAWERS:
            if self._open is not None:
                return f"error open {self._open}"
            self._open = argument
            return "ok"
        if argument:
            return _MALFORMED
        if function == "list":
            return "closed" if self._open is None else f"open {self._open}"
        if function not in ("read", "close"):
            return _MALFORMED
        if self._open is None:
            return "error closed"
        if function == "close":
            self._open = None
            return "ok"
        place = self._current().chain.find(self._open)
        self._read = max(self._read, place + 1)
        return self._notes.get(self._open, "empty")

    def _current(self) -> CabinetTask:
        if self._task is None:
            raise gym.error.ResetNeeded("this cabinet has no task yet; call reset() first")
        return self._task

    def expert(self) -> str:
        """The next call of a perfect agent, from any state. It uses only the notes read so far."""
        task = self._current()
        if self._read == len(task.chain):
            return f"submit({task.code})"
        wanted = task.chain[self._read]
        if self._open is None:
            return f"open({wanted})"
        return "read()" if self._open == wanted else "close()"

    def random_action(self, rng: np.random.Generator) -> str:
        """A call that does no harm: list (probability 1/2), read (3/10) or close (1/5)."""
        draw = rng.random()
        return "list()" if draw < 0.5 else "read()" if draw < 0.8 else "close()"


class CabinetLockedEnv(CabinetEnv):
    """The cabinet with a lock: in a chain of 4 to 10 drawers, one drawer is locked, but never the first.

    ``open(x)`` of that drawer answers ``locked`` until ``unlock()`` has freed it. ``unlock()`` answers ``ok``, or
    ``nothing`` if no drawer has answered ``locked`` since the last unlock. The expert takes 2 more steps.
    Demonstrations of short chains never show a lock, so an agent must learn to unlock by trial.

    Example:
        >>> env = CabinetLockedEnv()
        >>> env.reset(seed=0)[0].startswith("start "), env.step("unlock()")[0]
        (True, 'nothing')
    """

    _has_lock = True
    _system_prompt = _RULES.format(
        more='unlock()    frees the drawer that just answered "locked"; then open it again\n', end=" and ends the task"
    )

    def _call(self, function: str, argument: str) -> str:
        if function == "unlock" and not argument:
            if not self._refused:
                return "nothing"
            self._refused, self._locked = False, None
            return "ok"
        if function == "open" and argument == self._locked and self._open is None:
            self._refused = True
            return "locked"
        return super()._call(function, argument)

    def expert(self) -> str:
        """The next call of a perfect agent. It unlocks a drawer that it still needs."""
        still_needed = self._current().chain[self._read :]
        if self._refused and self._locked is not None and self._locked in still_needed:
            return "unlock()"
        return super().expert()

    def random_action(self, rng: np.random.Generator) -> str:
        """A call that does no harm: list (probability .35), unlock (.25), read (.25) or close (.15)."""
        draw = rng.random()
        return "list()" if draw < 0.35 else "unlock()" if draw < 0.6 else "read()" if draw < 0.85 else "close()"


class CabinetOpenEndedEnv(CabinetEnv):
    """The cabinet in which a failed episode has no end of its own, as in AppWorld: only the horizon ends it.

    A wrong code is answered with ``wrong``, and so is every later code.

    Example:
        >>> env = CabinetOpenEndedEnv()
        >>> observation, info = env.reset(options={"task_id": "dev-000000"})
        >>> [env.step(f"submit({code:02d})")[0] for code in range(100)].count("wrong")
        100
    """

    _system_prompt = _RULES.format(more="", end="; a wrong code is final: no later code can be right")
    _spoiled = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._spoiled = False
        return super().reset(seed=seed, options=options)

    def _submit(self, code: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._spoiled or code != self._current().code:
            self._spoiled = True
            return "wrong", 0.0, False, False, {"malformed": False}
        return super()._submit(code)

    def expert(self) -> str:
        """The next call of a perfect agent; ``list()`` after a wrong code."""
        return "list()" if self._spoiled else super().expert()
