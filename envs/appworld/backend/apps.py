"""The trusted process of a world: the apps, their databases and the evaluation.

The agent's code runs in another process (shell.py), whose API calls come over a link. This process makes and counts the
calls, and decides completion and verdict. The environment talks only to it.
"""

import contextlib
import copy
import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from . import adaptations, link

_CALL_CPU_S = 10.0  # processor time of one call
_COMPLETE_TASK = ("POST", "/supervisor/message")
_HEADERS, _LONGEST_METHOD = 100, 20
_WARM_UP = ("/supervisor/profile", "/api_docs/app_descriptions", "/spotify/songs/1", "/amazon/products/1")
_PAUSE_MS = 5


def serve(connection: socket.socket, options: Mapping[str, Any]) -> None:
    """Opens the task's world, gets the link to the code's process, and answers until the environment hangs up.

    Requests are ``{"warm_up"}``, which gets no answer, ``{"code"}``, and in the end ``{"save", "turns"}`` and
    ``{"verdict": True}``.

    `connection` goes to the environment, and first carries the link's descriptor. `options` are ``task_id``,
    ``max_api_calls`` (per step), ``max_output_chars`` and ``record`` (whether to keep the calls).
    """
    world = EpisodeApps(options)
    shell = link.take(connection)
    calls, theirs = socket.socketpair()
    link.give(shell, theirs)
    code = link.Code(shell, calls, connection)
    code.steps.send({"datetime": world.about["datetime"]})
    _, (told, _) = code.receive()
    if "error" in told:
        raise RuntimeError(f"the code's process: {told['error']}")
    connection.sendall(link.frame({"ready": world.about}))
    with world.guarded():
        while (request := link.receive(connection)) is not None:
            if "code" in request[0]:
                connection.sendall(link.frame(world.step(code, request[0]["code"])))
            elif "warm_up" in request[0]:
                world.warm_up(connection)
            else:
                break
    shell.close()
    calls.close()
    while request is not None:
        if "verdict" in request[0]:
            answer = {"verdict": world.verdict()}
        else:
            world.save(request[0]["save"], request[0]["turns"])
            answer = {"saved": {}}
        connection.sendall(link.frame(answer))
        request = link.receive(connection)


def open_world(task_id: str) -> Any:
    from appworld import AppWorld

    return AppWorld(
        task_id=task_id,
        experiment_name=os.path.abspath("outputs"),  # absolute, or it would be beside the data
        load_ground_truth=False,
        timeout_seconds=3600,  # the environment's is shorter, and the code's process has the limits
        max_interactions=10**9,
        max_api_calls_per_interaction=10**9,
    )


class EpisodeApps:
    """One episode's apps. `about` describes the task."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from appworld.apps import get_all_apps

        self._options, self._world = options, open_world(options["task_id"])
        self._transport = self._world.requester.client._transport
        self._public = tuple(f"/{app}/" for app in get_all_apps(skip_admin=True))
        self._calls, self._completed = 0, False  # of this step
        self._recorded: list[dict[str, Any]] = []
        task = self._world.task
        self.about = {
            "instruction": task.instruction,
            "supervisor": {k: task.supervisor[k] for k in ("first_name", "last_name", "email", "phone_number")},
            "datetime": task.datetime.isoformat(),
            "apps": dict(task.app_descriptions),
        }

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        self._world.safety_guard.enable()
        try:
            yield
        finally:
            self._world.safety_guard.disable()

    def warm_up(self, caller: socket.socket) -> None:
        """Makes calls that copy memory pages now, not in the first step. It stops when that comes."""
        poll = select.poll()
        poll.register(caller, select.POLLIN)
        for url in _WARM_UP:
            if poll.poll(_PAUSE_MS):
                return
            self._transport.handle_request(_request({"method": "GET", "url": url, "headers": []}, b"")).read()

    def step(self, code: link.Code, text: str) -> dict[str, Any]:
        """Has the code's process run a step, and answers its calls meanwhile.

        Returns ``output``, ``malformed``, ``completed`` and ``api_calls``; or ``lost`` (why the code's process is gone)
        and ``unread`` (whether it had not begun).
        """
        self._calls, self._completed, begun = 0, False, False
        try:
            code.steps.send({"run": True}, text.encode("utf-8", "surrogatepass"))
            while True:
                stream, (head, body) = code.receive()
                begun = True
                if stream is code.steps:
                    return self._outcome(head, body)
                stream.send(*self._answer(head, body))
        except (OSError, ValueError) as error:
            unread = isinstance(error, ConnectionResetError) and not begun
            return {"lost": f"the code's process: {error}", "unread": unread}

    def verdict(self) -> dict[str, Any]:
        tracker = evaluate(self._world)
        return {
            "success": bool(tracker.success),
            "passed": tracker.pass_count,
            "total": tracker.num_tests,
            "failures": [failure["requirement"] for failure in tracker.failures],
        }

    def save(self, folder: str, turns: list[tuple[str, str]]) -> None:
        world = copy.copy(self._world)  # the evaluation needs the old paths
        world.output_directory = folder
        for name in ("logs", "misc", "version", "checkpoints"):
            setattr(world, f"output_{name}_directory", os.path.join(folder, name))
        world.output_db_home_path_on_disk = os.path.join(folder, "dbs")
        world.environment_io = [{"input": code, "output": output} for code, output in turns]
        world.requester.request_tracker.requests = self._recorded
        adaptations.save(world)

    def _outcome(self, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        output = body.decode("utf-8", "surrogatepass")
        if len(output) > self._options["max_output_chars"] or not isinstance(head.get("malformed"), bool):
            raise ValueError("an outcome of another form")
        told = {"output": output, "malformed": head["malformed"]}
        return told | {"completed": self._completed, "api_calls": self._calls}

    def _answer(self, head: dict[str, Any], body: bytes) -> link.Frame:
        most = self._options["max_api_calls"]
        if self._calls >= most:
            text = f"Not called: a step may make {most:,} API calls, and this one has made them."
            return {"refused": text}, b""
        self._calls += 1
        if len(body) > link.MAX_CALL_BYTES:
            raise ValueError("a call that is too long")
        request = _request(head, body)
        path = unquote(request.url.path)
        if not f"{path}/".startswith(self._public):  # such as /dbs
            message = {"message": f"No app named '{path.lstrip('/').split('/')[0]}' found."}  # as the engine's
            shown = json.dumps(message, separators=(",", ":")).encode()
            return {"status": 404, "headers": [["content-type", "application/json"]]}, shown
        signal.setitimer(signal.ITIMER_PROF, _CALL_CPU_S)  # then the kernel ends this process
        try:
            response = self._transport.handle_request(request)
        except Exception as error:  # such as a number that the database cannot hold
            return {"raised": link.described(error)}, b""
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        self._completed |= (request.method, path) == _COMPLETE_TASK and response.status_code == 200
        if self._options["record"]:
            self._recorded.append(_logged(request, path))
        return {"status": response.status_code, "headers": response.headers.multi_items()}, response.read()


def evaluate(opened: Any) -> Any:
    from appworld.evaluator import evaluate_task

    adaptations.flush(opened)
    return evaluate_task(task_id=opened.task_id, experiment_name=opened.experiment_name, save_report=False)


def _request(head: dict[str, Any], body: bytes) -> Any:
    import httpx

    try:
        method, url, headers = head["method"], head["url"], head["headers"]
        if len(headers) > _HEADERS or len(method) > _LONGEST_METHOD or not url.startswith("/"):
            raise ValueError("it is too long")
        pairs = [(str(name), str(value)) for name, value in headers]
        return httpx.Request(method, "http://testserver" + url, headers=pairs, content=body)
    except Exception as error:
        raise ValueError("a request of another form") from error


def _logged(request: Any, path: str) -> dict[str, Any]:
    data: Any = {}
    text = request.read().decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        data = json.loads(text or "{}")
    if not isinstance(data, dict) or not data:
        data = dict(parse_qsl(text))  # a form, as in the login APIs
    return {"method": request.method.lower(), "url": path, "data": dict(parse_qsl(request.url.query.decode())) | data}
