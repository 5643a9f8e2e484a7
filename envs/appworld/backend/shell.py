"""The process of one episode in which the agent's code runs, with ``apis`` and ``requester`` but without the databases.

The code may do anything to this process, so the apps' process (apps.py) decides what counts.
"""

import ast
import os
import signal
import socket
import threading
from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from . import adaptations, link


class _Transport:
    """An httpx transport to the apps' process."""

    def __init__(self) -> None:
        self.connection: socket.socket
        self._lock, self._main = threading.Lock(), threading.get_ident()

    def handle_request(self, request: Any) -> Any:
        import httpx

        url, body = request.url.raw_path.decode("ascii"), request.read()
        head = {"method": request.method, "url": url, "headers": request.headers.multi_items()}
        # JSON may make the head six times longer.
        if len(body) > link.MAX_CALL_BYTES or len(str(head)) > link.MAX_HEAD_BYTES // 6:
            raise RuntimeError(f"Not called: a request may take {link.MAX_CALL_BYTES:,} bytes.")
        told, content = self.exchange(link.frame(head, body))
        if "refused" in told:
            raise RuntimeError(told["refused"])
        if "raised" in told:
            raise link.rebuilt(told["raised"])
        headers = [tuple(pair) for pair in told["headers"]]
        return httpx.Response(told["status"], headers=headers, stream=httpx.ByteStream(content), request=request)

    def close(self) -> None: ...

    def exchange(self, request: bytes) -> link.Frame:
        if threading.get_ident() != self._main:
            return self._exchange(request)
        # The engine's timeout must not come between request and answer. It is raised in this thread.
        late: list[int] = []
        handler = signal.signal(signal.SIGALRM, lambda number, _: late.append(number))
        try:
            return self._exchange(request)
        finally:
            signal.signal(signal.SIGALRM, handler)
            if late:
                signal.raise_signal(signal.SIGALRM)

    def _exchange(self, request: bytes) -> link.Frame:
        with self._lock:
            try:
                self.connection.sendall(request)
                answer = link.receive(self.connection)
            except BaseException:
                self.connection.close()
                raise
        if answer is None:
            raise ConnectionError("the apps have gone away")
        return answer


class Shell:
    """The engine's world without apps. Make it in the zygote. `apis` is the result of `table`."""

    def __init__(self, apis: Mapping[str, Mapping[str, Any]]) -> None:
        import appworld.collections.apis as collection
        import appworld.environment as environment
        import appworld.requester as engine
        from appworld.apps import get_all_apps
        from appworld.common.constants import DB_VERSION

        class TestClient(engine.TestClient):  # type: ignore[misc]
            def __exit__(self, *_: object) -> None:
                pass

        async def nothing(*_: Any) -> None:
            pass

        def ignore(*_: Any, **__: Any) -> None:
            pass

        self._transport, client = _Transport(), TestClient(nothing)
        client._transport = self._transport
        engine.Requester._get_client = lambda _: client
        engine.set_local_dbs = engine.set_local_show_api_response_schemas = ignore
        engine._get_api_name_to_doc = lambda app, include_private_apis=False: apis[app]["documents"]
        collection.get_name_to_apis = lambda app, ignore_private_apis=True: dict.fromkeys(apis[app]["names"])
        task = SimpleNamespace(
            db_version=DB_VERSION,
            models_from_db_home_path="",
            model_collection=SimpleNamespace(from_db_home_path=""),
            allowed_apps=get_all_apps(skip_admin=True),
            datetime=datetime(2023, 5, 18, 12),
        )
        environment.Task = SimpleNamespace(load=lambda **_: task)
        environment.ModelCollection = SimpleNamespace(load=ignore)
        adaptations.save_nothing()
        options = {"load_ground_truth": False, "max_interactions": 10**9}  # ElasticTimeLimit limits the steps
        self._world = environment.AppWorld(task_id="task", experiment_name="world", **options)

    def warm_up(self, *codes: str) -> None:
        """Runs code whose calls get an empty answer. This makes the shell useless for an agent."""
        self._transport.exchange = lambda request: ({"status": 200, "headers": []}, b"{}")  # type: ignore[method-assign]
        for code in (*codes, "apis.supervisor.show_profile()"):
            self._world.execute(code)

    def begin(self, connection: socket.socket, options: Mapping[str, Any]) -> None:
        import appworld.common.utils as utils
        from appworld.apps.api_lib import set_local_date_and_time, set_local_random_seed

        world, self._steps = self._world, connection
        self._transport.connection = link.take(connection)
        # A forked process, which only unconfined code can start, must not answer for this one.
        for end in (connection, self._transport.connection):
            os.register_at_fork(after_in_child=end.close)
        if (told := link.receive(connection)) is None:
            raise ConnectionError("the apps have gone away")
        world.task.datetime = world.requester.date_and_time = datetime.fromisoformat(told[0]["datetime"])
        set_local_date_and_time(world.task.datetime)
        set_local_random_seed()
        world.timeout_seconds = max(1, round(options["timeout_s"]))
        if not options["own_alarm"]:
            # The environment, which knows how long the code could run, sends the signal.
            utils.signal = SimpleNamespace(**vars(signal) | {"alarm": _no_alarm})
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        world.requester.request_tracker.max_num_requests = options["max_api_calls"]
        connection.sendall(link.frame({"ready": True}))

    def serve(self, max_output_chars: int) -> None:
        while (request := link.receive(self._steps)) is not None:
            code = request[1].decode("utf-8", "surrogatepass")
            try:
                output = self._world.execute(code)
            except BaseException as error:  # the engine left its guard on
                output = f"Execution failed. Traceback:\n{type(error).__name__}: {error}"
                self._world.safety_guard.disable()
            output = shorten(output, max_output_chars)
            self._steps.sendall(link.frame({"malformed": not _parses(code)}, output.encode("utf-8", "surrogatepass")))


def _no_alarm(seconds: int) -> None:
    """Sets no alarm. After a step (0), a late signal is ignored."""
    if not seconds:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def table() -> dict[str, dict[str, Any]]:
    from appworld.apps import get_all_apps
    from appworld.common.utils import get_name_to_apis
    from appworld.requester import _get_api_name_to_doc

    apis = {}
    for app in get_all_apps():
        documents = _get_api_name_to_doc(app, include_private_apis=True)
        kept = {name: {key: document[key] for key in ("method", "path")} for name, document in documents.items()}
        apis[app] = {"names": list(get_name_to_apis(app)), "documents": kept}
    return apis


def shorten(text: str, limit: int) -> str:
    r"""Cuts the middle out of a text longer than ``limit`` characters and puts a note in its place.

    >>> shorten("0123456789" * 100, 60)
    '0123456789\n[980 characters left out]\n0123456789'
    """
    if len(text) <= limit:
        return text
    half = max(0, (limit - 40) // 2)  # 40: room for the note
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"


def _parses(code: str) -> bool:
    code = code.strip()  # as the engine does
    if not code:
        return False
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
