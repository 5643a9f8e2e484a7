"""``python -m envs serve EH-…``: any registered text environment as an OpenEnv server, with many sessions at once.

The protocol, the sessions and the routes are those of ``openenv``.
"""

import argparse
import base64
import functools
import json
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from typing import Any
from uuid import uuid4

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Text

from eh_gym.answers import is_verdict, step_fault
from eh_gym.checked import place
from eh_gym.errors import ConfigError, EHError, MissingExtraError, UserCodeError, WorkerDied
from eh_gym.processes import most_files
from eh_gym.surrogates import escaped
from envs.ids import task_ids_of
from envs.make import json_object, make_environment, registered, takes_split

try:
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State
    from pydantic import Field, field_validator
except ImportError as error:
    raise MissingExtraError(
        f"serving an environment needs OpenEnv ({error}); run, in a checkout: pip install -e '.[openenv]'"
    ) from error

_LONGEST_MESSAGE = 1_000_000  # characters

App = Callable[[Any, Any, Any], Awaitable[None]]


class TextAction(Action):  # type: ignore[misc]
    """What the agent writes."""

    message: str = Field(
        description="The agent's message, as the model wrote it; at most a million characters are read"
    )

    @field_validator("message", mode="before")
    @classmethod
    def _readable(cls, message: Any) -> Any:
        """Cuts a long text and escapes invalid Unicode, which would be errors."""
        return escaped(message[:_LONGEST_MESSAGE]) if isinstance(message, str) else message


class TextObservation(Observation):  # type: ignore[misc]
    """The environment's answer. OpenEnv's clients drop ``metadata``, so everything important is a field."""

    text: str = Field(description="The observation")
    terminated: bool = Field(default=False, description="The task's own rules ended the episode")
    truncated: bool = Field(default=False, description="A limit, or a failure of the environment, ended the episode")
    success: bool | None = Field(default=None, description="The verdict; null before the end")
    system_prompt: str | None = Field(default=None, description="The rules for the agent; with a reset's answer alone")
    info: dict[str, Any] = Field(default_factory=dict, description="What else Gymnasium's info has, as JSON")


class ServedEnv(Environment[TextAction, TextObservation, State]):  # type: ignore[misc]
    """One session: an environment for each split that the client asks for. `make_app` explains the arguments."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str, args: Mapping[str, Any], splits: Sequence[str]) -> None:
        super().__init__()
        self._env_id, self._args, self._splits = env_id, dict(args), list(splits)
        self._envs: dict[str, gym.Env[str, str]] = {}
        self._env: gym.Env[str, str] | None = None
        self._state, self._task_id = State(), None
        self._closed = False

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
    ) -> TextObservation:
        try:
            self._env = self._of(split)
            if index is not None:
                if task_id is not None:
                    raise ConfigError(f"reset takes a task_id or an index, got {task_id!r} and {index}; leave one out")
                task_id = self.get_task(split or self._splits[0], index)["id"]
            elif task_id is not None:
                self._refuse_unserved(task_id, split)
            observation, info = self._env.reset(seed=seed, options=None if task_id is None else {"task_id": task_id})
        except EHError as error:  # the client gets only the text
            raise type(error)(f"{type(error).__name__}: {error}") from error
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        info, self._task_id = dict(info), info.get("task_id")  # the environment may keep its own
        prompt = info.pop("system_prompt", None)
        return TextObservation(
            text=escaped(str(observation)),
            system_prompt=None if prompt is None else escaped(str(prompt)),
            info=_json(info),
        )

    def step(self, action: TextAction, timeout_s: float | None = None) -> TextObservation:
        self._refuse_if_closed()
        if self._env is None:
            raise ConfigError("this session has no episode yet; call reset before step")
        answer = self._env.step(action.message)
        self._state.step_count += 1
        if fault := step_fault(answer):  # the client gets only the text
            raise UserCodeError(f"UserCodeError: {place(self._task_id, self._state.step_count)}: {fault}")
        text, reward, terminated, truncated, info = answer
        info = dict(info)
        success = info.pop("success", None)
        return TextObservation(
            text=escaped(str(text)),
            reward=float(reward),
            done=bool(terminated or truncated),
            terminated=bool(terminated),
            truncated=bool(truncated),
            success=bool(success) if is_verdict(success) else None,
            info=_json(info),
        )

    @property
    def state(self) -> State:
        return self._state

    def list_splits(self) -> list[str]:
        return self._splits

    def num_tasks(self, split: str) -> int:
        return len(self._task_ids(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        tasks = self._task_ids(split)
        if not 0 <= index < len(tasks):
            raise ConfigError(
                f"split {split!r} has {len(tasks)} tasks, so index must be in 0 .. {len(tasks) - 1}, got {index}"
            )
        return {"id": tasks[index], "index": index}

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [{"id": task_id, "index": i} for i, task_id in enumerate(self._task_ids(split))]

    def close(self) -> None:
        self._closed = True
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise WorkerDied(
                "the session was silent for too long and is closed; connect again, or raise --idle-timeout-s"
            )

    def _of(self, split: str | None) -> gym.Env[str, str]:
        self._refuse_if_closed()
        split = self._splits[0] if split is None else split
        if split not in self._splits:
            raise ConfigError(f"this server has the splits {self._splits}, not {split!r}")
        if split not in self._envs:
            args: dict[str, Any] = {**self._args, **({"split": split} if split else {})}
            self._envs[split] = env = make_environment(self._env_id, args)
            if not (isinstance(env.observation_space, Text) and isinstance(env.action_space, Text)):
                raise ConfigError(
                    f"only environments whose spaces are gymnasium.spaces.Text can be served; {self._env_id} observes "
                    f"{env.observation_space} and takes {env.action_space}"
                )
        return self._envs[split]

    def _refuse_unserved(self, task_id: str, split: str | None) -> None:
        """Refuses a task of a split that is not served, which the environment would accept."""
        for served in dict.fromkeys([split or self._splits[0], *self._splits]):
            tasks = task_ids_of(self._of(served))
            if tasks is None or task_id in tasks:
                return
        raise ConfigError(
            f"the splits of this server, {self._splits}, have no task {task_id!r}; list_tasks names theirs"
        )

    def _task_ids(self, split: str) -> Sequence[str]:
        ids = task_ids_of(self._of(split))
        if ids is None:
            raise ConfigError(f"{self._env_id} does not list its tasks; reset with a seed alone")
        return ids


class RequireToken:
    """ASGI middleware: requests and websockets without the token are refused, but for /health.

    The token comes as ``Authorization: Bearer TOKEN``. A client without headers of its own, such as verifiers', takes
    it as the password of its URL: ``http://any:TOKEN@HOST``.
    """

    def __init__(self, app: App, token: str) -> None:
        self._app, self._expected = app, token.encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        given = _password(dict(scope.get("headers", ())).get(b"authorization", b""))
        if scope["type"] == "lifespan" or scope["path"] == "/health" or secrets.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "the token is missing or wrong"})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"the token is missing or wrong\n"})


def _password(authorization: bytes) -> bytes:
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value).partition(b":")[2]
        except ValueError:
            return b""
    return value if scheme.lower() == b"bearer" else b""


def make_app(
    env_id: str, *, args: Mapping[str, Any], splits: Sequence[str], sessions: int, idle_s: float, token: str
) -> App:
    """The server of an environment, as an ASGI application.

    The first of `splits` is the default. A session is closed after `idle_s` seconds of silence.
    """
    if sessions < 1 or not idle_s > 0:
        raise ConfigError(f"max_sessions must be >= 1 and idle_timeout_s > 0, got {sessions} and {idle_s:g}")
    spec = registered(env_id)
    if "split" in args:
        raise ConfigError(f"the environment's arguments have a split, {args['split']!r}; say it with --split")
    made: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    if not takes_split(made):
        if list(splits) not in ([], ["train"]):
            raise ConfigError(f"{env_id} has no splits, got --split {' '.join(splits)}; leave it out")
        splits = [""]
    factory = functools.partial(ServedEnv, env_id, args, splits)
    functools.update_wrapper(factory, ServedEnv)
    with closing(factory()) as probe:  # an error now is better than one in each session
        for split in splits:
            probe._of(split)
    app = create_app(
        factory,
        TextAction,
        TextObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle_s),
        env_name=spec.id.replace("/", "-"),  # a part of URLs
    )
    return RequireToken(app, token) if token else app


def make_server(app: App) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10))


def serve(options: argparse.Namespace, token: str, *, show_token: bool) -> int:
    """Serves until SIGINT or SIGTERM, and then closes every session. `options` are the command line."""
    app = make_app(
        options.env,
        args=json_object(options.env_args, "--env-args"),
        splits=options.split,
        sessions=options.max_sessions,
        idle_s=options.idle_timeout_s,
        token=token,
    )
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listening = socket.create_server((options.host, options.port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {options.host} port {options.port}: {error}; choose another") from error
    most_files()
    server = make_server(app)
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"serving {options.env} at http://{host}:{listening.getsockname()[1]}", flush=True)
    print(
        f"token: {token}" if show_token else "token: as given" if token else "no token: everybody may play", flush=True
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn ends on both and raises them again, but the environments must be closed first.
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listening])
    print("all sessions are closed", flush=True)
    return 0


def _json(info: Mapping[str, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    for name, value in info.items():
        try:
            text = json.dumps(value, ensure_ascii=False, default=lambda item: item.tolist())
            # JSON would read an escape as a lone surrogate again.
            encoded[escaped(str(name))] = json.loads(text.encode("utf-8", "replace"))
        except (TypeError, ValueError, AttributeError, RecursionError):
            continue
    return encoded
