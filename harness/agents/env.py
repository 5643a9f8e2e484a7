"""An agent program as a text environment: its requests to the model are observations, the answers are actions."""

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym

from eh_gym.errors import ConfigError, WorkerError
from eh_gym.spaces import UnicodeText
from envs.options import named_task
from harness.agents.gateway import Gateway
from harness.agents.keys import without_keys
from harness.agents.program import Ended, Running, find_agent
from harness.agents.protocol import OVER, ModelAnswer, ModelCall, Refusal, Sampling, budget_used_up
from harness.agents.session import Session

_LONGEST = 1_000_000  # characters of an observation or action
_GRACE_S = 5.0  # the time for an agent to end by itself after its episode

Info = dict[str, Any]


class AgentEnv(gym.Env[str, Any]):
    """Plays an agent program as an episode.

    A reset starts the agent on a task and returns its first request to the model. A step answers it with a
    `ModelAnswer` or a text, and returns the next one, or the agent's verdict. ``info["call"]`` is the request, a
    `ModelCall`; ``info["agent_program"]`` of a reset is an `AgentProgram`.

    If an agent fails, its episode ends without a reward. ``info["failure"]`` says why, and ``info["trace"]`` where. If
    it ends before its first request, the reset's info has them, and the episode has no step.

    Args:
        agent: See `find_agent`.
        tasks: See `read_tasks`.
        split: The split of the tasks: "train", another name, or "all".
        at_k: The answer to the request after the last step: see ``--at-k``.
        timeout_s: The most seconds that an agent may take from one request to the next, or to its end, > 0.
        temperature: The temperature of the run.
        sampling: What becomes of a request's own options: see `read_call`, and `read_hosted_call` for a hosted model.
        upstream: The endpoint that answers other requests, such as those for embeddings.

    Attributes:
        hosted: Whether a hosted model answers. Requests and answers are then passed on as they are.

    Raises:
        ConfigError: The agent can't be found, the tasks can't be read, or the split holds none.
    """

    hosted = False

    def __init__(
        self,
        agent: str | Callable[[dict[str, Any], str], Any],
        tasks: str | Path | Sequence[Mapping[str, Any]],
        *,
        split: str = "train",
        at_k: Literal["error", "stop"] = "error",
        timeout_s: float = 300.0,
        temperature: float = 1.0,
        sampling: Sampling = "run",
        upstream: str = "",
    ) -> None:
        self._agent = find_agent(agent)
        every = read_tasks(tasks)
        self._tasks = {name: task for name, task in every.items() if split in ("all", task.get("split", "train"))}
        if not self._tasks:
            named = sorted({str(task.get("split", "train")) for task in every.values()})
            raise ConfigError(
                f'no task is of the split {split!r}, there are {", ".join(named)}; give tasks "split": "{split}", name '
                "another split, or evaluate nothing (--eval-tasks 0)"
            )
        self.task_ids: Sequence[str] = list(self._tasks)
        self._at_k, self._timeout_s = at_k, timeout_s
        self._told: dict[str, Any] = {"temperature": temperature, "sampling": sampling, "upstream": upstream}
        self._grace_s = _GRACE_S
        self.observation_space = self.action_space = UnicodeText(_LONGEST)
        self._session: Session | None = None
        self._running: Running | None = None
        self._call: ModelCall | None = None  # the request that waits for its answer
        self._calls = 0
        self._interrupted = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        """Starts a new agent, and waits for its first request."""
        super().reset(seed=seed)
        task_id = named_task(options)
        if task_id is None:
            task_id = self.task_ids[int(self.np_random.integers(len(self.task_ids)))]
        if task_id not in self._tasks:
            raise ConfigError(f"expected a task of the split, such as {self.task_ids[0]!r}, got {task_id!r}")
        self.close()
        task = self._tasks[task_id]
        with _STARTING:
            gateway = _gateway(os.getpid())
        session = self._session = gateway.open(**self._told, hosted=self.hosted)
        self._running = self._agent.start(task, session.base_url, lambda: session.end(_over("the agent has ended")))
        if self._interrupted:
            self.interrupt()  # it had no agent to end
        self._calls, self._call = 0, session.next_call(self._timeout_s)
        info = {**task, "task_id": task_id, "agent": self._agent.name, "system_prompt": ""}
        call = self._call
        if call is None:
            ended = self._finish()
            why = f"the agent ended without a call of the model: {ended.failure or 'it returned a verdict'}"
            return "", info | {"failure": why, "trace": ended.trace}
        system = "\n".join(message["content"] for message in call.messages if message["role"] == "system")
        info |= {"system_prompt": without_keys(system), "tools": call.tools, "call": call, "agent_program": self}
        return _shown(call), info

    def step(self, action: str | ModelAnswer) -> tuple[str, float, bool, bool, Info]:
        """Answers the agent's request, and waits for the next one or the end."""
        if self._session is None or self._call is None:
            raise gym.error.ResetNeeded("the agent has ended, or none has begun; call reset() before step()")
        self._session.answer(self._call, ModelAnswer(action) if isinstance(action, str) else action)
        self._calls += 1
        self._call = self._session.next_call(self._timeout_s)
        if self._call is not None:
            return _shown(self._call), 0.0, False, False, {"call": self._call}
        ended = self._finish()
        info = {"failure": ended.failure or None, "trace": ended.trace}
        verdict = {} if ended.success is None else {"success": ended.success}
        return ended.failure, ended.reward, True, False, info | verdict

    def waiting(self) -> list[ModelCall]:
        return self._session.waiting() if self._session is not None else []

    def stop_agent(self, why: str) -> None:
        if self._session is None or self._running is None:
            return
        self._running.stop_soon(self._grace_s)
        if why != "horizon":
            self._session.end(_over(why))
        else:
            last = ModelAnswer(f"The budget of {self._calls} calls is used up.") if self._at_k == "stop" else None
            self._session.end(budget_used_up(self._calls), last)

    def verdict(self) -> tuple[str, float, bool, bool, Info]:
        assert self._running is not None, "stop_agent() comes before verdict()"
        self._running.stop(self._grace_s)
        ended = self._ended(hangs=False)
        return ended.failure, ended.reward, False, True, {"failure": ended.failure or None}

    def interrupt(self) -> None:
        """Kills the agent, from any thread. A waiting reset or step raises WorkerError."""
        self._interrupted, self._grace_s = True, 0.0
        session, running = self._session, self._running
        if session is not None and running is not None:
            session.end(_over("it is interrupted"))
            running.stop(0.0)

    def close(self) -> None:
        session, running = self._session, self._running
        self._session = self._running = self._call = None
        if session is not None:
            session.end(_over("its slot is needed"))
            if running is not None:
                running.stop(self._grace_s)
            session.close()

    def _finish(self) -> Ended:
        ended, interrupted = self._ended(hangs=not self._interrupted), self._interrupted
        self.close()
        if interrupted:
            raise WorkerError("the agent was interrupted")
        return ended

    def _ended(self, *, hangs: bool) -> Ended:
        assert self._running is not None
        ended = self._running.ended
        if ended is None:
            trace = self._running.hung() if hangs else ""
            ended = Ended(failure=f"the agent was silent for {self._timeout_s:g} s", trace=trace)
        return replace(ended, failure=without_keys(ended.failure), trace=without_keys(ended.trace))


def read_tasks(tasks: str | Path | Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Reads tasks by their ids, from a JSON Lines file or a sequence of objects. Raises ConfigError.

    A task's ``"id"`` is its number from 0 by default, and its ``"split"`` is "train".
    """
    if isinstance(tasks, (str, Path)):
        try:
            # splitlines would also split at U+2028, which JSON's texts may contain.
            lines = Path(tasks).read_text("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--tasks can't be read ({error}); give a file with a JSON object in each line"
            ) from error
        try:
            tasks = [json.loads(line) for line in lines if line.strip()]
        except ValueError as error:
            raise ConfigError(f"--tasks must have a JSON object in each line, got {error}") from error
    by_id: dict[str, dict[str, Any]] = {}
    for number, task in enumerate(tasks):
        if not isinstance(task, Mapping):
            raise ConfigError(f"--tasks: expected a JSON object for each task, got {task!r:.200}")
        name = str(task.get("id", number))
        if name in by_id:
            raise ConfigError(f"--tasks: two tasks have the id {name!r}; give each its own")
        by_id[name] = dict(task)
    if not by_id:
        raise ConfigError("--tasks holds no task; write a JSON object in each line")
    return by_id


_STARTING = threading.Lock()


@functools.cache
def _gateway(process: int) -> Gateway:
    return Gateway()


def _over(why: str) -> Refusal:
    return Refusal(f"the episode is over: {why}", status=OVER, code="episode_over")


def _shown(call: ModelCall) -> str:
    last = max((at for at, message in enumerate(call.messages) if message["role"] == "assistant"), default=-1)
    texts = (message["content"] for message in call.messages[last + 1 :] if message["role"] != "system")
    return without_keys("\n".join(texts))
