"""EH-Tau2: tau2-bench's telecom domain in solo mode, with tau2's tasks, tools and verdict."""

import functools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from eh_gym.errors import ConfigError, WorkerDied, WorkerError
from eh_gym.replies import split_reply
from eh_gym.spaces import UnicodeText
from eh_gym.worker import Session, backend_command, shared_pool
from envs.backends import backend_python, read_pins
from envs.description import Backend, Description
from envs.options import chosen_task
from envs.tau2.backend.calls import LONGEST

SPLITS = ("train", "test", "base", "small", "full", "rest")
_OPTIONS = {"policy": ("full", "none"), "answers": ("full", "brief"), "actions": ("calls", "native", "menu")}


def task_ids(split: str) -> Sequence[str]:
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return _splits(backend_python("tau2"))[split]


@functools.cache
def _splits(python: Path) -> dict[str, Sequence[str]]:
    [path] = python.parents[1].glob("lib/*/site-packages/tau2/data/tau2/domains/telecom/split_tasks.json")
    splits: dict[str, Sequence[str]] = json.loads(path.read_text(encoding="utf-8"))
    return {**splits, "rest": [task_id for task_id in splits["full"] if task_id not in splits["base"]]}


class Tau2Env(gym.Env[str, str], EzPickle):
    """A telecom customer's ticket, and 43 tools of the agent and of the customer's phone.

    The observation is the ticket, then the answer to each call. ``done`` ends the episode, with the official verdict as
    the reward, 1 or 0.

    ``info`` at reset: ``task_id``, ``system_prompt``, ``instruction`` (the ticket), ``kind``, and if native ``tools``.
    At each step: ``malformed`` (not all are calls of tools), if native ``tool_results``, and at the end ``success``.

    Args:
        split: train, test, base (both), small, full or rest (full without base, for demonstrations).
        policy: "full" (the prompt has tau2's policy and the tools) or "none".
        answers: "full" or "brief" (for tiny models).
        actions: "calls" (a call as text), "native" (as in EH-BFCL) or "menu" (words for calls).
    """

    description: ClassVar = Description(
        SPLITS,
        task_ids,
        Backend("tau2", "26.3", read_pins(Path(__file__).parent / "requirements.txt")),
        recipe="tau2",
        script_split="base",
        test_split="test",
        # `tau2 run` stops at 200 messages: 99 calls with their answers, and done.
        official={"split": "base", "env_args": {"policy": "full"}, "horizon": 100},
        part_arguments=("answers",),
        official_splits=("test",),
        scripts=("nothing", "transfer", "blind"),
    )

    def __init__(
        self, split: str = "train", policy: str = "full", answers: str = "full", actions: str = "calls"
    ) -> None:
        EzPickle.__init__(self, split, policy, answers, actions)
        self._options = {"policy": policy, "answers": answers, "actions": actions}
        for name, value in self._options.items():
            if value not in _OPTIONS[name]:
                raise ConfigError(f"{name} must be one of {', '.join(_OPTIONS[name])}, got {value!r}")
        self.task_ids, self.demonstrated_ids = task_ids(split), task_ids("rest")
        self.observation_space = self.action_space = UnicodeText(10_000_000)
        self._command = backend_command(backend_python("tau2"), Path(__file__).parent / "backend" / "worker.py")
        self._session: Session | None = None
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        task_id = chosen_task(self, options, task_ids("full"), "a task of tau2's telecom domain")
        self._running = False
        if self._session is None or not self._session.alive:
            self.close()
            self._session = shared_pool(1, self._command).session()
        info = self._session.call("start", {"task_id": task_id, **self._options})
        self._running = True
        return info.pop("observation"), {"task_id": task_id, "kind": task_id[1:].split("_issue")[0], **info}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text = action if isinstance(action, str) else ""
        if self._options["actions"] != "native":
            text = split_reply(text)[1]
        try:
            info = self._call("step", {"action": text[:LONGEST]})
        except WorkerError as error:
            # An agent can't kill the worker. All else is its failure.
            name = "environment_error" if isinstance(error, WorkerDied) else "world_lost"
            info = {"observation": "The worker failed.", "malformed": False, "success": False, name: repr(error)}
        failed, success = "environment_error" in info, info.get("success")
        self._running = success is None
        return info.pop("observation"), float(success or 0), not failed and not self._running, failed, info

    def expert(self) -> str:
        return self.script("expert")

    def script(self, name: str) -> str:
        return str(self._call("action", {"player": name}))

    def random_action(self, rng: np.random.Generator) -> str:
        return str(self._call("action", {"player": "random", "draw": rng.random()}))

    def messages(self) -> Any:
        return self._call("messages", {})

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(WorkerError):
                session.call("finish")
            session.close()

    def _call(self, method: str, params: dict[str, Any]) -> Any:
        if self._session is None or not self._running:
            raise gym.error.ResetNeeded("no episode is running; call reset() before step()")
        return self._session.call(method, params)
