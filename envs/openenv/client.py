"""EH-Remote: an OpenEnv server of a text environment, as a Gymnasium environment."""

import functools
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.utils import EzPickle

from eh_gym.errors import ConfigError, MissingExtraError, UserCodeError, WorkerCallError, WorkerDied
from eh_gym.spaces import UnicodeText
from envs.ids import LazyIds
from envs.openenv.token import TOKEN_VARIABLE, checked_token
from envs.options import named_task

try:
    from openenv import GenericEnvClient
    from websockets.exceptions import WebSocketException
except ImportError as error:
    raise MissingExtraError(
        f"EH-Remote-v0 needs OpenEnv ({error}); run, in a checkout: pip install -e '.[openenv]'"
    ) from error

_LONGEST = 10_000_000  # characters; only the spaces need this bound
_LONGEST_MESSAGE = 1_000_000  # characters of an action; the rest is cut
_PAUSE_S = 0.2  # between two attempts to connect
_ASK_TIMEOUT_S = 30.0  # for requests that need no environment
_ABSENT = (502, 503, 504)  # the answers of a proxy while the server restarts
_LOST = (OSError, EOFError, WebSocketException)  # raised by the connection if the other end is gone


class RemoteEnv(gym.Env[str, str], EzPickle):
    """Plays any OpenEnv text server, over one session of its own.

    A server other than this project's needs an action with one required text field, and an observation with one text
    field; both can be named.

    If the server is lost during an episode, the episode is truncated with ``info["environment_error"]``, and does not
    count for `ElasticTimeLimit` and the harness. The next reset connects again. No message is sent twice.

    Args:
        url: The server, such as ``http://127.0.0.1:8000``, ``https://`` or with a path.
        token: Sent as ``Authorization: Bearer``; "" sends none. The default is the environment variable EH_ENV_TOKEN.
            ``env.spec`` and pickled environments contain the argument, but not the variable.
        split: The split whose tasks are played; "" for the server's default.
        action_field: The action's text field; "" takes its one required field.
        observation_field: The observation's text field; "" takes ``text``, or else the only one that is a text.
        timeout_s: The longest wait for an answer, in seconds. It must be longer than the deadlines of the environment
            there.
        patience_s: How long a reset tries to reach the server, in seconds.

    Raises:
        ConfigError: The url, the token, the task or the split is wrong, the server is full, or its action has not one
            text field.
        WorkerDied: A reset did not reach the server in time.
        WorkerCallError: The environment there could not begin the episode.
        UserCodeError: An answer of the environment there breaks the rules of `eh_gym.answers`.
        MissingExtraError: The ``openenv`` package is not installed.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        split: str = "",
        action_field: str = "",
        observation_field: str = "",
        timeout_s: float = 3600.0,
        patience_s: float = 60.0,
    ) -> None:
        EzPickle.__init__(self, url, token, split, action_field, observation_field, timeout_s, patience_s)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url must be like http://127.0.0.1:8765, got {url!r}")
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE, "")
        self.observation_space, self.action_space = UnicodeText(_LONGEST), UnicodeText(_LONGEST)
        self._url, self._split, self._patience_s = url.rstrip("/"), split, patience_s
        self._headers = {"Authorization": f"Bearer {checked_token(token)}"} if token else {}
        self._timeout_s = timeout_s
        self._client: Any = None
        self._action_field, self._observation_field = action_field, observation_field
        self._task_ids: Sequence[str] | None = None
        self._playing = False

    @property
    def task_ids(self) -> Sequence[str]:
        if self._task_ids is None:
            try:
                name = self._ask("/list_environments")[0]
                splits = [one["name"] for one in self._ask(f"/{name}/splits")]
                split = self._split or splits[0]
                if split not in splits:
                    raise ConfigError(f"the server at {self._url} has the splits {splits}, not {split!r}")
                count = self._ask(f"/{name}/num_tasks", {"split": split})["num_tasks"]
            except (urllib.error.HTTPError, LookupError, TypeError) as error:  # such as 501
                raise AttributeError(f"the server at {self._url} does not list its tasks ({error})") from error
            self._task_ids = _TaskIds(
                count, lambda index: self._ask(f"/{name}/task", {"split": split, "index": index})["task"]["id"]
            )
        return self._task_ids

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        arguments = {"seed": seed, "task_id": named_task(options), "split": self._split or None}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        end = time.monotonic() + self._patience_s
        while True:
            reused = self._client is not None
            try:
                self._connect()
                result = self._client.reset(**arguments)
            except RuntimeError as error:  # the server's own answer
                full = "CAPACITY_REACHED" in str(error)
                # A session may have ended after a long silence.
                if not reused and (not full or time.monotonic() > end):
                    self._disconnect()
                    kind = ConfigError if full or "ConfigError" in str(error) else WorkerCallError
                    raise kind(f"the server at {self._url} refuses the reset: {error}") from error
            except _LOST as error:
                if time.monotonic() > end:
                    self._disconnect()
                    raise self._unreachable(error) from error
            else:
                self._playing = True
                text, info = self._read(result.observation)
                return text, {name: value for name, value in info.items() if name not in ("terminated", "truncated")}
            self._disconnect()
            time.sleep(_PAUSE_S)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._playing:
            raise gym.error.ResetNeeded("this session has no running episode; call reset() before step()")
        try:
            # A server may refuse a lone surrogate, or end the connection for a long text.
            message = action[:_LONGEST_MESSAGE].encode("utf-8", "replace").decode()
            result = self._client.step({self._action_field: message})
        except (RuntimeError, *_LOST) as error:
            self._disconnect()
            # OpenEnv has no field for an error's kind. An agent's text may be in an error, but not at its beginning.
            if kind := re.match(r"(Server error: )?UserCodeError: ", str(error)):
                raise UserCodeError(f"the environment at {self._url}: {str(error)[kind.end() :]}") from error
            return "", 0.0, False, True, {"success": False, "environment_error": f"{type(error).__name__}: {error}"}
        text, info = self._read(result.observation)
        terminated = bool(info.pop("terminated", result.done))
        truncated = bool(info.pop("truncated", False))
        self._playing = not (terminated or truncated)
        return text, 0.0 if result.reward is None else result.reward, terminated, truncated, info

    def close(self) -> None:
        self._disconnect()

    def _connect(self) -> None:
        if self._client is None:
            if not self._action_field:
                schema = self._http("/schema")
                if not isinstance(schema, dict) or "action" not in schema:
                    raise ConfigError(
                        f"what answers at {self._url} is not an OpenEnv server: its /schema has no action"
                    )
                self._action_field = _only_field(schema["action"])
            client = GenericEnvClient(base_url=self._url, message_timeout_s=self._timeout_s, headers=self._headers)
            self._client = client.sync()
            self._client.connect()

    def _disconnect(self) -> None:
        client, self._client, self._playing = self._client, None, False
        if client is not None:
            try:
                client.close()
            except (RuntimeError, *_LOST):
                pass  # it was lost before

    def _read(self, observation: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        name = self._observation_field or ("text" if "text" in observation else "")
        if not name:
            texts = [field for field, value in observation.items() if isinstance(value, str)]
            if len(texts) != 1:
                return json.dumps(observation), {}
            name = texts[0]
        more = observation.get("info")
        left_out = (name, "info", "metadata")
        info = {field: value for field, value in observation.items() if field not in left_out and value is not None}
        return str(observation[name]), info | (more if isinstance(more, dict) else {})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        end = time.monotonic() + self._patience_s
        while True:
            try:
                return self._http(path, body)
            except OSError as error:
                if isinstance(error, urllib.error.HTTPError) and error.code not in _ABSENT:
                    raise
                if time.monotonic() > end:
                    raise self._unreachable(error) from error
            time.sleep(_PAUSE_S)

    def _unreachable(self, error: Exception) -> WorkerDied:
        return WorkerDied(
            f"the server at {self._url} can't be reached for {self._patience_s:g} s ({error}); start it, or raise "
            "patience_s"
        )

    def _http(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {**self._headers, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_ASK_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise ConfigError(
                    f"the server at {self._url} refuses the token; give the one that it printed as token, or in "
                    f"{TOKEN_VARIABLE}"
                ) from error
            if error.code == 404:
                raise ConfigError(
                    f"what answers at {self._url} has no {path}, so it is not an OpenEnv server"
                ) from error
            raise
        except ValueError as error:
            raise ConfigError(
                f"what answers at {self._url} is not an OpenEnv server: its {path} is not JSON"
            ) from error


class _TaskIds(LazyIds):
    def __init__(self, count: int, fetch: Callable[[int], str]) -> None:
        self._count, self._fetch = count, functools.cache(fetch)

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> str:
        return self._fetch(index)


def _only_field(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    if len(required) != 1 or schema["properties"][required[0]].get("type") != "string":
        raise ConfigError(
            f"expected an action with one required text field, got {required}; name the field with action_field"
        )
    return str(required[0])
