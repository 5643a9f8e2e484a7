"""Runs an agent: a Python function or a command. It gets a task and the model's address, and returns a verdict."""

import asyncio
import copy
import ctypes
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from eh_gym.answers import MOST_REWARD, is_reward, is_verdict
from eh_gym.checked import accepts, said_by
from eh_gym.errors import ConfigError, WorkerError

Task = Mapping[str, Any]
Play = Callable[[dict[str, Any], str], Any]

_KEPT = 16_384  # bytes of the end of a command's output
_LINES = 50  # lines of a failed command's stderr (or else its stdout) that are logged
_EXCEPTION = re.compile(r"[\s|]*(\w+[.:])*\w*(Error|Exception)\b")  # how its line begins, in most languages and groups
_CLONE_FS = 0x200
_KILLED_S = 1.0  # until a killed command has ended
_DRAIN_S = 5.0  # the time for killed processes to close their pipes
_KEEPER = str(Path(__file__).with_name("keeper.py"))


@dataclass(frozen=True)
class Ended:
    """How an agent ended: its verdict (`success` is None if it gave only a number), or why there is none.

    The trace is the traceback of a function that failed, or where it hangs, or the last 50 lines of a command's stderr.
    """

    reward: float = 0.0
    success: bool | None = False
    failure: str = ""
    trace: str = ""


class Running:
    """An agent at work, in a thread of its own. What `work` raises is the agent's failure. `kill` ends it if it can."""

    def __init__(
        self, name: str, work: Callable[[], Ended], kill: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._work, self._on_end, self._kill = work, on_end, kill
        self.ended: Ended | None = None
        self._thread = threading.Thread(target=self._run, name=f"eh-agent-{name}", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        self._thread.join(grace_s)
        if self._thread.is_alive():
            self._kill()

    def hung(self) -> str:
        """Kills an agent that hangs, and returns its trace."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        self.stop(0.0)
        self._thread.join(_KILLED_S)
        return self.ended.trace if self.ended else stack

    def stop_soon(self, grace_s: float) -> None:
        threading.Thread(target=self.stop, args=(grace_s,), name="eh-agent-end", daemon=True).start()

    def _run(self) -> None:
        try:
            self.ended = self._work()
        except BaseException as error:  # also SystemExit, which must not end the run
            trace = traceback.format_exc()
            while isinstance(inner := getattr(error, "exceptions", None), tuple):  # the first of an exception group
                error = inner[0]
            self.ended = Ended(failure=said_by(error), trace=trace)
        finally:
            self._on_end()


@dataclass(frozen=True)
class Agent:
    """An agent that `find_agent` has found: its name in logs, and what prepares its work for `Running`."""

    name: str
    prepare: Callable[[Task, str], tuple[Callable[[], Ended], Callable[[], None]]]

    def start(self, task: Task, base_url: str, on_end: Callable[[], None]) -> Running:
        """Starts it; its thread calls `on_end`. Raises WorkerError if a command can't be started."""
        return Running(self.name, *self.prepare(task, base_url), on_end)


def find_agent(agent: str | Play) -> Agent:
    """Finds the agent that ``--agent`` names: a function ``play(task, base_url)``, also an async one; its name as
    ``MODULE:FUNCTION``; or a command, such as ``node agent.js``. Raises ConfigError if there is none.
    """
    if callable(agent):
        if not accepts(agent, {}, "") or getattr(agent, "__annotations__", {}).get("return", 0) in (None, "None"):
            raise ConfigError(f"an agent must be a function play(task, base_url) that returns a verdict, got {agent!r}")
        name = getattr(agent, "__name__", type(agent).__name__)
        return Agent(name, partial(_function, agent))
    if match := re.fullmatch(r"([\w.]+):([\w.]+)", agent):
        return find_agent(_imported(*match.groups()))
    try:
        words = shlex.split(agent)
    except ValueError as error:
        raise ConfigError(f"--agent is no command ({error}), got {agent!r}") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"--agent must be MODULE:FUNCTION or a command that can be found, got {agent!r}")
    return Agent(os.path.basename(words[0]), partial(_command, words))


def read_verdict(value: Any) -> Ended:
    """Reads what an agent returned: a reward, a verdict, or an object with ``reward`` and ``success``.

    >>> read_verdict(0.5), read_verdict(True)
    (Ended(reward=0.5, success=None, failure='', trace=''), Ended(reward=1.0, success=True, failure='', trace=''))
    >>> read_verdict({"reward": 0.5, "success": True}).success
    True
    >>> read_verdict("half").failure
    "expected a reward, a number at most 1e+12 from 0, or True or False, got 'half'"
    """
    given = value if isinstance(value, Mapping) else {"reward": value}
    values: list[Any] = [given.get("reward"), given.get("success")]
    # an array or a tensor may hold one number
    reward, success = (one.item() if getattr(one, "shape", None) == () else one for one in values)
    if not is_reward(reward):
        return Ended(
            failure=f"expected a reward, a number at most {MOST_REWARD:g} from 0, or True or False, got {reward!r:.200}"
        )
    if success is None:
        return Ended(float(reward), reward if isinstance(reward, bool) else None)
    if not is_verdict(success):
        return Ended(failure=f"expected the success True or False, got {success!r:.200}; return one of them")
    return Ended(float(reward), bool(success))


def _imported(module: str, name: str) -> Play:
    try:
        play: Any = importlib.import_module(module)
        for part in name.split("."):
            play = getattr(play, part)
    except Exception as error:  # the module may raise anything
        raise ConfigError(
            f"--agent {module}:{name} can't be imported ({error!r}); run the command in the folder of "
            f"{module.split('.')[0]}.py, or install its package"
        ) from error
    if not callable(play):
        raise ConfigError(f"--agent must name a function play(task, base_url), got {module}:{name} = {play!r:.200}")
    return play  # type: ignore[no-any-return]


def _function(play: Play, task: Task, base_url: str) -> tuple[Callable[[], Ended], Callable[[], None]]:
    cancel: list[Callable[[], Any]] = []

    async def wait(answer: Any) -> Any:
        loop, now = asyncio.get_running_loop(), asyncio.current_task()
        assert now is not None
        cancel.append(lambda: loop.call_soon_threadsafe(now.cancel))
        return await answer

    def work() -> Ended:
        if sys.platform == "linux":
            ctypes.CDLL(None).unshare(_CLONE_FS)  # os.chdir then concerns this thread alone
        answer = play(copy.deepcopy(dict(task)), base_url)  # the next episode gets the task unchanged
        return read_verdict(asyncio.run(wait(answer)) if inspect.isawaitable(answer) else answer)

    def kill() -> None:
        with suppress(IndexError, RuntimeError):  # a plain function, or a loop that has just closed
            cancel[0]()

    return work, kill


def _command(words: list[str], task: Task, base_url: str) -> tuple[Callable[[], Ended], Callable[[], None]]:
    variables = {"OPENAI_BASE_URL": base_url, "EH_TASK": json.dumps(dict(task))}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"OPENAI_API_KEY": "any", **os.environ, **variables},
            start_new_session=True,
        )
    except OSError as error:
        raise WorkerError(
            f"the agent's command can't be started: {error}; a task has at most 128 KiB of JSON"
        ) from error

    def kill() -> None:
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
            process.send_signal(signal.SIGCONT)  # if the agent has stopped its keeper
        if process.returncode == -signal.SIGKILL:  # perhaps the keeper alone
            _kill_by_address(base_url)

    def work() -> Ended:
        assert process.stdout is not None
        assert process.stderr is not None
        printed, complained = _Tail(process.stdout), _Tail(process.stderr)
        code = process.wait()
        kill()
        lines, errors = printed.lines(), complained.lines()
        kill()  # what had not quite begun
        if code:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            named = [line for line in errors if _EXCEPTION.match(line)] or errors  # Node's last line is its version
            ended = Ended(
                failure=": ".join([f"the command ended with {how}", *(line.strip(" |") for line in named[-1:])])
            )
        elif not lines:
            ended = Ended(failure="the command printed nothing")
        else:
            try:
                ended = read_verdict(json.loads(lines[-1]))
            except ValueError:
                ended = Ended(failure=f"the command's last line is no verdict: {lines[-1]!r:.200}")
        return replace(ended, trace="\n".join((errors or lines)[-_LINES:])) if ended.failure else ended

    return work, kill


def _kill_by_address(base_url: str) -> None:
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if base_url.encode() in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)


class _Tail:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._read, name="eh-agent-output", daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        self._thread.join(_DRAIN_S)
        lines = (line.decode("utf-8", "replace") for line in self._kept.splitlines())
        return [line for line in lines if line.strip()]

    def _read(self) -> None:
        with self._stream as stream:
            while more := os.read(stream.fileno(), _KEPT):
                self._kept = (self._kept + more)[-_KEPT:]
