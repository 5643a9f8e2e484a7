"""The HTTP API of one vLLM server: sampling from token ids, pause and resume, and weights from a file.

Every call blocks, and may be made from any thread. Proxies are not used, because the servers belong to the run.
"""

import http.client
import json
import select
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from eh_gym.errors import ConfigError, SamplerError

_CONNECT_S = 10.0  # for a connection; a slower server counts as gone
# For an answer. A server that samples for others meanwhile is not gone: this request waits for its turn.
CALL_S = 600.0


class ServerGone(SamplerError, ConnectionError):
    """The server can't be reached, closed the connection, had an internal error, or did not answer in time."""


class ServerRefused(SamplerError):
    """The server refused the call as wrong."""


class VLLMServer:
    """The API of one server at `url`, such as ``http://gpu1:8000``; any other form raises ConfigError."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
                raise ValueError("it has another form")
            self._address = parts.hostname, parts.port
        except ValueError as error:  # urlsplit refuses a bracket alone, and a port that is no number or too large
            raise ConfigError(f"{url!r} is no address ({error}); give one such as http://gpu1:8000") from error
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = url
        self._sampled = 0.0  # when it last did

    def version(self) -> str:
        return str(self._call("GET", "/version")["version"])

    def settings(self) -> dict[str, Any]:
        return dict(self._call("GET", "/server_info?config_format=json")["vllm_config"])

    def world_size(self) -> int:
        return int(self._call("GET", "/get_world_size")["world_size"])

    def generate(self, name: str, token_ids: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        """Samples one request: its ``token_ids``, ``logprobs``, ``finish_reason`` and ``weight_versions``."""
        body = {"request_id": name, "token_ids": token_ids, "sampling_params": sampling}
        choice = dict(self._call("POST", "/inference/v1/generate", body=body)["choices"][0])
        self._sampled = time.monotonic()
        return choice

    def abort(self, name: str) -> None:
        self._call("POST", "/inference/v1/abort_requests", body={"request_ids": [f"generate-tokens-{name}"]})

    def pause(self) -> None:
        """Pauses every request where it is and drops all keys and values, which are computed again afterwards."""
        self._call("POST", "/pause?mode=keep&clear_cache=true")

    def resume(self) -> None:
        self._call("POST", "/resume")

    def load_weights(self, file: str) -> None:
        self._call("POST", "/collective_rpc", body={"method": "load_policy", "args": [file]})

    def weight_version(self) -> str:
        return str(self._call("GET", "/weight_info")["weight_version"])

    def name_weights(self, weight_version: str) -> None:
        self._call("POST", "/update_weight_version", body={"new_version": weight_version})

    def _wait(self, sock: socket.socket) -> None:
        poll, began = select.poll(), time.monotonic()  # select() takes no more than 1,024 descriptors
        poll.register(sock, select.POLLIN)
        while not poll.poll(1000 * CALL_S):
            if time.monotonic() - max(began, self._sampled) >= CALL_S:
                raise TimeoutError(f"nothing in {CALL_S:g} s")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = self._connection(*self._address, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(CALL_S)
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"} if sent else {})
            self._wait(connection.sock)
            response = connection.getresponse()
            text = response.read()
            answer = json.loads(text) if text and response.status < 400 else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerGone(f"{self.url} did not answer {method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 500:
            raise ServerGone(f"{self.url} failed on {method} {path}: {response.status} {text[:500]!r}")
        if response.status >= 400:
            raise ServerRefused(f"{self.url} refused {method} {path}: {response.status} {text[:500]!r}")
        return answer
