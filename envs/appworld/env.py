"""EH-AppWorld: AppWorld's tasks, worked on by writing Python, with the real engine and the official evaluation.

Each episode has a process of its own, forked from a warm one; another process gives the verdict by making the episode's
API calls again. Left out: what AppWorld measures over many tasks, such as scenario goal completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from eh_gym.errors import ConfigError, WorkerError, WorkerTimeout
from eh_gym.spaces import UnicodeText
from envs.appworld import data, prompt
from envs.appworld.actions import code_of
from envs.appworld.hosts import Host, Settings, World, local_host
from envs.appworld.remote import remote_host
from envs.runtime import backend_python

__all__ = ["AppWorldEnv"]

_LONGEST = 10_000_000  # characters; a bound for the spaces only
_LONGEST_CODE = 200_000  # characters; a model that writes more has lost its way
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
    """A person's task in nine apps with 457 APIs, worked on by writing Python code.

    The action is the model's text: its first fenced Python block, or all of it if there is none, is run by AppWorld's
    engine. The observation is what it prints. ``apis.supervisor.complete_task(...)`` ends the episode, and the official
    evaluation gives the reward: 1 if every test passes, else 0.

    ``info`` at reset: ``task_id``, ``system_prompt``, ``instruction``, ``supervisor`` (first_name, last_name, email,
    phone_number), ``datetime`` (ISO 8601, the world's own now), ``difficulty`` (AppWorld's, 1 to 3; None where the data do
    not say). At each step: ``malformed`` (no Python), ``api_calls`` (made by this action); at the end ``success`` and
    ``verdict`` (``passed`` and ``total`` tests, ``failures``: the requirements that were not met).

    Code that destroys its world (it ends or hangs the process, or forges what it says) ends the episode with reward 0 and
    ``info["world_lost"]``. If the host fails, the episode is truncated with ``info["environment_error"]``; the next reset
    starts it again.

    Args:
        split: train (90 tasks), dev (57), test_normal (168), test_challenge (417), or mini: a small world of this project's
            own, whose scores are not AppWorld scores.
        step_timeout_s: Seconds that one action's code may run.
        max_observation_chars: Longer outputs lose their middle, with a note in its place.
        max_api_calls: API calls that one action may make.
        memory_mb: Memory that one episode's code may take, in MiB.
        confined: Whether to confine the code as far as the host allows. ``python -m envs doctor`` says how far that is;
            False is for debugging only: then a model's code can do what you can.
        url: Use the worlds of a server (``python -m envs serve appworld``) at this address instead of making them here.
        token: The server's; by default the environment variable EH_APPWORLD_TOKEN, read where the environment is made. An
            argument stands in ``env.spec`` and in what is pickled, the variable does not.

    Raises:
        ConfigError: An argument is not one of those listed.
        MissingBackendError: AppWorld or the split's data are not installed; the message names the command.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own declaration

    def __init__(
        self,
        split: str = "train",
        step_timeout_s: float = 30.0,
        max_observation_chars: int = 20_000,
        max_api_calls: int = 1000,
        memory_mb: int = 1024,
        confined: bool = True,
        url: str | None = None,
        token: str | None = None,
    ) -> None:
        EzPickle.__init__(
            self, split, step_timeout_s, max_observation_chars, max_api_calls, memory_mb, confined, url, token
        )
        if url is None and token is not None:
            raise ConfigError("token belongs to url, which is missing")
        if url is not None and not confined:
            raise ConfigError("with url, confined is the server's to decide; leave it out")
        settings = Settings(
            step_timeout_s=step_timeout_s,
            max_api_calls=max_api_calls,
            max_output_chars=max_observation_chars,
            memory_mb=memory_mb,
            confined=confined,
        )
        self._split = split
        self._host: Host
        if url is None:
            self._host = local_host(backend_python("appworld"), data.roots(split), settings)
        else:
            self._host = remote_host(url, token, settings)
        self.task_ids: Sequence[str] = self._host.task_ids(split)
        self.observation_space = UnicodeText(_LONGEST)
        self.action_space = UnicodeText(_LONGEST)
        self._world: World | None = None
        self._task_id = ""
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts a task: ``options={"task_id": id}``, else one of ``task_ids`` drawn with the seed.

        Raises:
            ConfigError: The split has no such task.
            WorkerError: No world could be made.
        """
        super().reset(seed=seed)
        task_id = (options or {}).get("task_id")
        if task_id is None:
            task_id = self.task_ids[int(self.np_random.integers(len(self.task_ids)))]
        elif task_id not in self.task_ids:
            raise ConfigError(
                f"expected a task of the split {self._split!r} such as {self.task_ids[0]!r}, got {task_id!r}; "
                "env.unwrapped.task_ids has them all"
            )
        self._leave()
        self._world = self._host.open(task_id)
        self._task_id, self._steps = task_id, 0
        about = self._world.about
        return prompt.first_message(about), {
            "task_id": task_id,
            "system_prompt": prompt.system_prompt(about["apps"]),
            "instruction": about["instruction"],
            "supervisor": dict(about["supervisor"]),
            "datetime": about["datetime"],
            "difficulty": about.get("difficulty"),  # an older server does not tell
        }

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs one message's code.

        Raises:
            gymnasium.error.ResetNeeded: The episode has ended, or none has begun.
        """
        world = self._live()
        self._steps += 1
        code = code_of(action) if isinstance(action, str) else ""  # what is no text has no code
        if len(code) > _LONGEST_CODE:
            text = f"Not run: {len(code):,} characters of code; at most {_LONGEST_CODE:,} are allowed."
            return text, 0.0, False, False, {"malformed": True, "api_calls": 0}
        try:
            result = world.execute(code)
        except WorkerError as error:
            self._leave()
            if world.host_failed:
                return _failed(error)
            text = f"Your code has destroyed its world, and the episode is over: {error}"
            lost = f"{type(error).__name__}: {error}"
            return text, 0.0, True, False, {"malformed": False, "api_calls": 0, "success": False, "world_lost": lost}
        info: dict[str, Any] = {"malformed": result["malformed"], "api_calls": result["api_calls"]}
        if not result["completed"]:
            return result["output"], 0.0, False, False, info
        try:
            verdict = dict(world.verdict())
        except WorkerTimeout as error:  # calls that take so long to make again are the code's doing
            lost = f"{type(error).__name__}: {error}"
            return result["output"], 0.0, True, False, {**info, "success": False, "world_lost": lost}
        except WorkerError as error:
            return _failed(error)
        finally:
            self._leave()
        info["success"] = verdict.pop("success")
        info["verdict"] = verdict
        return result["output"], float(info["success"]), True, False, info

    def prepare(self, task_ids: Sequence[str]) -> None:
        """Has worlds made ahead, so that their resets hardly wait: one for each mention of a task.

        All environments of this process with the same arguments share them; worlds that were prepared earlier and are not
        mentioned are given up.
        """
        self._host.prepare(task_ids)

    def expert(self) -> str:
        """The reference solution's next message. It follows the number of steps taken, whatever they were.

        Raises:
            ConfigError: The task comes without a reference solution, as in the benchmark's test splits.
        """
        self._live()
        steps = self._host.reference(self._split, self._task_id)
        if steps is None:
            raise ConfigError(f"the task {self._task_id!r} of split {self._split!r} comes without a reference solution")
        code = steps[min(self._steps, len(steps) - 1)]
        return f"```python\n{code.rstrip()}\n```"

    def random_action(self, rng: np.random.Generator) -> str:
        """Code that reads, computes or fails, or no code at all."""
        text = _HARMLESS[int(rng.integers(len(_HARMLESS)))]
        text = text.format(app=_APPS[int(rng.integers(len(_APPS)))], number=int(rng.integers(1, 100)))
        return f"```python\n{text}\n```" if rng.random() < 0.5 else text

    def close(self) -> None:
        """Ends the episode's process; the warm ones go on for other environments, until this process ends."""
        self._leave()

    def _live(self) -> World:
        if self._world is None:
            raise gym.error.ResetNeeded("this environment has no running episode; call reset() before step()")
        return self._world

    def _leave(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            world.close()


def _failed(error: WorkerError) -> tuple[str, float, bool, bool, dict[str, Any]]:
    text = f"The environment failed, and this episode is over: {error}"
    name = f"{type(error).__name__}: {error}"
    return text, 0.0, False, True, {"malformed": False, "api_calls": 0, "success": False, "environment_error": name}
