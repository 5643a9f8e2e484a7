"""A zygote without AppWorld, for tests of what is said to one: its worlds start in milliseconds and tell their task.

A worker's backend, which forks its worlds with the code of zygote.py.
"""

import importlib.util
import socket
import sys
from pathlib import Path

_BACKEND = Path(__file__).resolve().parents[3] / "envs" / "appworld" / "backend"


def backend(name):
    if "backend" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "backend", _BACKEND / "__init__.py", submodule_search_locations=[str(_BACKEND)]
        )
        sys.modules["backend"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["backend"])
    return importlib.import_module(f"backend.{name}")


children, link = backend("children"), backend("link")
_children = None


def handle(method, params):
    global _children
    if method == "load":
        _children = children.Children(params["folder"])
        return None
    if method == "start":
        return {"apis": {}}
    if method == "end":
        return _children.end(params["names"], wait=True)
    _children.end(params["abandoned"], wait=False)
    options = params["options"]
    live = (lambda c, *_: _apps(c, options["task_id"])) if "task_id" in options else (lambda c, *_: _shell(c))
    return _children.spawn(params["name"], live)


def _apps(connection, task_id):
    code = socket.socket(fileno=socket.recv_fds(connection, 1, 1)[1][0])
    code.setblocking(True)  # the environment's end has a timeout
    supervisor = {"first_name": "A", "last_name": "B", "email": "a@b", "phone_number": "1"}
    about = {"instruction": task_id, "supervisor": supervisor, "datetime": "2023-05-18T12:00:00", "apps": {}}
    connection.sendall(link.frame({"ready": about}))
    while (request := link.receive(connection)) is not None:
        if "code" not in request[0]:
            continue
        code.sendall(link.frame({}, f"{task_id}: {request[0]['code']}".encode()))
        said = link.receive(code)[1].decode()
        outcome = {"output": said, "malformed": False, "completed": False, "api_calls": 0}
        connection.sendall(link.frame(outcome))


def _shell(connection):
    while (frame := link.receive(connection)) is not None:
        connection.sendall(link.frame(*frame))
