"""EH-AppWorld: AppWorld's tasks, with the real engine and official evaluation."""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from eh_gym.errors import ConfigError, WorkerCallError, WorkerError
from eh_gym.spaces import UnicodeText
from envs.appworld import data, prompt
from envs.appworld.actions import code_of, refusal_of
from envs.appworld.hosts import Settings, TaskWorld, shared_host
from envs.backends import backend_python
from envs.description import Description
from envs.options import chosen_task

_Result = tuple[str, float, bool, bool, dict[str, Any]]
_LONGEST = 10_000_000  # characters
_HARMLESS = (
    "print(apis.api_docs.show_app_descriptions())",
    "print(apis.api_docs.show_api_descriptions(app_name='{app}'))",
    "print(apis.supervisor.show_profile())",
    "print(apis.{app}.no_such_api())",
    "x = {number}\nprint(x * x)",
    "for i in range({number}): print(i)",
    "I wonder what to do.",
)
_APPS = ("amazon", "file_system", "gmail", "phone", "simple_note", "splitwise", "spotify", "todoist", "venmo")


class AppWorldEnv(gym.Env[str, str], EzPickle):
    """A person's task in nine apps with 457 APIs. The agent works on it by writing Python code.

    The action is the model's text. AppWorld's engine runs its first fenced Python block, or all of the text if there is
    no block. The observation is what the code prints. ``apis.supervisor.complete_task(...)`` ends the episode, and the
    official evaluation gives the reward: 1 if every test passes, else 0; with ``reward="score"``, the share of tests
    that pass.

    ``info`` at reset: ``task_id``, ``system_prompt``, ``instruction``, ``supervisor`` (first_name, last_name, email,
    phone_number), ``datetime`` (the present time in the world, ISO 8601), ``difficulty`` (AppWorld's, 1 to 3, or None),
    ``scenario`` (AppWorld's SGC counts the scenarios all of whose tasks are solved).

    ``info`` at each step: ``malformed`` (the code is not Python), ``api_calls`` (made by this action). At the end also
    ``success``, ``score`` (the share of tests that passed) and ``verdict`` (``passed`` and ``total``: numbers of tests;
    ``failures``: the requirements that were not met).

    Code can destroy its world, for example by ending its process. The episode then ends with reward 0 and
    ``info["world_lost"]``. If the host fails, the episode is truncated with ``info["environment_error"]``, and the next
    reset starts the host again. See docs/appworld.md. An interrupt (Ctrl-C) in a step ends the episode.

    Args:
        split: train (90 tasks), dev (57), test_normal (168), test_challenge (417), or mini: a small world of this
            project's own, whose scores are not AppWorld scores.
        step_timeout_s: The seconds that one action's code may run, a whole number >= 1. Seconds in which other worlds
            kept it from running do not count.
        max_observation_chars: Longer outputs lose their middle. A note takes its place. At most 1,048,576.
        max_api_calls: The API calls that one action may make. Further calls raise an exception in the code, and so does
            a call of more than 256 KiB.
        memory_mb: The memory that one episode's code may take, in MiB.
        reward: "success" (the official verdict) or "score".
        confined: Whether to confine the code as far as the host allows (see ``python -m envs doctor``). False is for
            debugging only: the model's code can then do everything that you can do.

    Raises:
        ConfigError: An argument is not one of those listed.
        MissingBackendError: AppWorld or the split's data are not installed. The message names the command.
    """

    description: ClassVar = Description(
        data.SPLITS,
        data.task_ids,
        data.BACKEND,
        recipe="appworld",
        model_split="test_normal",
        script_split="dev",  # the test splits have no reference solutions
        test_split="mini",
        official={"split": "test_normal", "horizon": 50},
        official_splits=("test_challenge",),
    )

    def __init__(
        self,
        split: str = "train",
        step_timeout_s: float = 30.0,
        max_observation_chars: int = 20_000,
        max_api_calls: int = 1000,
        memory_mb: int = 1024,
        confined: bool = True,
        reward: str = "success",
    ) -> None:
        EzPickle.__init__(
            self, split, step_timeout_s, max_observation_chars, max_api_calls, memory_mb, confined, reward
        )
        if reward not in ("success", "score"):
            raise ConfigError(f"reward must be success or score, got {reward!r}")
        settings = Settings(
            step_timeout_s=step_timeout_s,
            max_api_calls=max_api_calls,
            max_observation_chars=max_observation_chars,
            memory_mb=memory_mb,
            confined=confined,
        )
        self._split, self._settings, self._reward = split, settings, reward
        self._host = shared_host(backend_python("appworld"), data.root_of(split), settings)
        self.task_ids: Sequence[str] = data.task_ids(split)
        self.observation_space = UnicodeText(_LONGEST)
        self.action_space = UnicodeText(_LONGEST)
        self._world: TaskWorld | None = None
        self._task_id = ""
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the task of ``options={"task_id": id}``, or else one of ``task_ids`` drawn with the seed.

        Raises:
            ConfigError: The split has no such task.
            WorkerError: No world could be made.
        """
        super().reset(seed=seed)
        task_id = chosen_task(self, options, self.task_ids, f"a task of the split {self._split!r}")
        self._leave()
        self._world = self._host.open(task_id)
        self._task_id, self._steps = task_id, 0
        about = self._world.about
        return prompt.first_message(about), {
            "task_id": task_id,
            "system_prompt": prompt.system_prompt(about["apps"], self._settings),
            "instruction": about["instruction"],
            "supervisor": dict(about["supervisor"]),
            "datetime": about["datetime"],
            "difficulty": about["difficulty"],
            "scenario": task_id.rsplit("_", 1)[0],  # as appworld.task.task_id_to_generator_id
        }

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs one message's code.

        Raises:
            gymnasium.error.ResetNeeded: No episode is running.
        """
        world = self._live()
        try:
            return self._step(world, action)
        except BaseException:  # a late answer would be taken for the next action's
            self._leave()
            raise

    def expert(self) -> str:
        """The reference solution's next message. It depends only on the number of steps taken so far.

        Raises:
            ConfigError: The task has no reference solution.
        """
        self._live()
        steps = data.reference(self._split, self._task_id)
        if steps is None:
            raise ConfigError(f"the task {self._task_id!r} of split {self._split!r} has no reference solution")
        code = steps[min(self._steps, len(steps) - 1)]
        return f"```python\n{code.rstrip()}\n```"

    def random_action(self, rng: np.random.Generator) -> str:
        text = _HARMLESS[int(rng.integers(len(_HARMLESS)))]
        text = text.format(app=_APPS[int(rng.integers(len(_APPS)))], number=int(rng.integers(1, 100)))
        return f"```python\n{text}\n```" if rng.random() < 0.5 else text

    def close(self) -> None:
        self._leave()
        self._host.clear()

    def _step(self, world: TaskWorld, action: Any) -> _Result:
        self._steps += 1
        message = action if isinstance(action, str) else ""
        if refusal := refusal_of(message):
            return refusal, 0.0, False, False, {"malformed": True, "api_calls": 0}
        code = code_of(message)
        try:
            result = world.execute(code)
            verdict = dict(world.verdict()) if result["completed"] else None
        except WorkerError as error:
            self._leave()
            return _over(error, world.host_failed)
        info: dict[str, Any] = {"malformed": result["malformed"], "api_calls": result["api_calls"]}
        if verdict is None:
            return result["output"], 0.0, False, False, info
        self._leave()
        success = bool(verdict.pop("success"))
        info |= {"success": success, "score": verdict["passed"] / verdict["total"], "verdict": verdict}
        return result["output"], float(info[self._reward]), True, False, info

    def _live(self) -> TaskWorld:
        if self._world is None:
            raise gym.error.ResetNeeded("this environment has no running episode; call reset() before step()")
        return self._world

    def _leave(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            world.close()


def _over(error: WorkerError, host_failed: bool) -> _Result:
    key = "environment_error" if host_failed else "world_lost"
    who = "The environment failed" if host_failed else "Your code has destroyed its world"
    why = _printable(f"{type(error).__name__}: {error}")
    info = {"malformed": False, "api_calls": 0, "success": False, "score": 0.0, key: why}
    return f"{who}, and this episode is over: {_reason(error)}", 0.0, not host_failed, host_failed, info


def _printable(text: str) -> str:
    """Escapes control characters: an agent's text may be shown in terminals."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _reason(error: WorkerError) -> str:
    """The message for the agent. It omits other processes' texts, which may name the host's files."""
    if isinstance(error, WorkerCallError):
        return "a process reported that it failed"
    return str(error).splitlines()[0]
