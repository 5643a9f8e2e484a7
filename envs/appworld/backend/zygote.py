"""A zygote: imports AppWorld once, and then forks a process for every world.

There are two: one forks the processes of the apps (apps.py), the other those of the agents' code (shell.py), which never had
the apps or their data. Each is a worker's backend (eh_gym/worker/child.py). Its only other thread is that worker's watching
thread, which holds no lock while it sleeps. An environment connects to the zygote's socket and asks for a process
(children.py); the new process then owns the connection. A forked process inherits everything that is the same for all tasks,
so it only costs what it changes. The zygote has no deadlines: the environment (forks.py) ends a process that takes too long.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from typing import Any

from . import adaptations, apps, confine, link, shell, wire
from .children import Children

# Modules that the engine imports late, modules that are imported late by those that the agent's code may import (the guard
# lists these), and codecs, which ``"…".encode(name)`` imports. All are imported before any fork, because a world's user may be
# unable to read the virtualenv (in a home of mode 0700), so that the engine or the agent's code could not import them.
_IMPORTED_LATE = (
    *("appworld.common.random", "faker", "inflection", "psutil", "secrets", "xxhash", "zipfile"),
    *("_strptime", "unittest.mock", "pendulum.formatting.difference_formatter", "pendulum.locales.en.locale"),
    *("encodings.ascii", "encodings.cp1252", "encodings.idna", "encodings.latin_1", "encodings.punycode"),
    *("encodings.raw_unicode_escape", "encodings.unicode_escape", "encodings.utf_7", "encodings.utf_8_sig"),
    *("encodings.utf_16", "encodings.utf_16_be", "encodings.utf_16_le", "encodings.utf_32", "encodings.base64_codec"),
    *("encodings.hex_codec", "encodings.rot_13"),
)


class _Zygote:
    """What both zygotes have: the processes that they have forked."""

    def __init__(self, folder: str, report: Callable[[socket.socket, dict[str, str]], object]) -> None:
        self.folder, self.pid = folder, os.getpid()
        os.environ.update(APPWORLD_ROOT=os.path.join(folder, "root"), IPYTHONDIR=folder, PYTHON_DOTENV_DISABLED="1")
        os.chdir(folder)
        gc.disable()  # the imports leave a great many objects: collecting again and again takes a fifth of the start
        self.children = Children(folder, self.clean_up, report)
        self.told: dict[str, Any] = {"layers": []}

    def ready(self) -> None:
        """Call it when everything is imported."""
        gc.collect()
        gc.freeze()
        gc.enable()

    def clean_up(self, pid: int) -> None:
        """Removes what a process has left."""

    def spawn(self, name: str, options: Mapping[str, Any]) -> int:
        """Forks a process with this name, and returns its pid."""
        raise NotImplementedError


class _AppsZygote(_Zygote):
    """Forks the processes of the apps. `root` holds the data, with the ground truth."""

    def __init__(self, folder: str, root: str) -> None:
        confine.isolate_apps()
        super().__init__(folder, wire.send)
        # The engine writes its outputs next to its data. In this folder we can remove them, and the data's own root, which may
        # belong to the user, stays unchanged.
        own = os.path.join(folder, "root")
        os.mkdir(own)
        os.symlink(os.path.join(root, "data"), os.path.join(own, "data"))
        import appworld
        from appworld.task import load_task_ids

        appworld.update_root(own)
        adaptations.apply(appworld.__version__, "before")
        _warm_up_apps(_any_task(root, load_task_ids))
        adaptations.apply(appworld.__version__, "after")
        self.told["apis"] = shell.table()
        self.ready()

    def spawn(self, name: str, options: Mapping[str, Any]) -> int:
        def live(connection: socket.socket, slot: int, scratch: str) -> None:
            confine.limit(confine.Limits(**options["limits"]))
            apps.serve(connection, options)

        return self.children.spawn(name, live)

    def clean_up(self, pid: int) -> None:
        outputs = os.path.join(self.folder, "root", "experiments", "outputs", apps.experiment_name(pid))
        shutil.rmtree(outputs, ignore_errors=True)


class _ShellZygote(_Zygote):
    """Forks the processes of the agents' code. `apis` is what the other zygote told."""

    def __init__(self, folder: str, apis: Mapping[str, Any], confined: bool) -> None:
        super().__init__(folder, lambda connection, told: connection.sendall(link.frame(told)))
        import appworld

        adaptations.apply(appworld.__version__, "shell")
        _import_late()
        throwaway, _ = shell.prepare(apis)
        for code in (_USES, "1 / 0", "x ="):
            throwaway.execute(code)
        self.world, self.transport = shell.prepare(apis)
        self.confined = confined
        self.told["layers"] = confine.isolate_host() if confined else []
        self.readable = confine.interpreter_folders()
        self.ready()

    def spawn(self, name: str, options: Mapping[str, Any]) -> int:
        def live(connection: socket.socket, slot: int, scratch: str) -> None:
            limits = confine.Limits(**options["limits"])

            def confined() -> None:
                if self.confined:
                    confine.confine(slot, scratch, limits, self.readable, parent=self.pid)

            shell.serve(connection, options, self.world, self.transport, confined)

        return self.children.spawn(name, live)


_zygote: _Zygote | None = None


def handle(method: str, params: dict[str, Any]) -> Any:
    """Answers the worker protocol: one ``start``, then any number of ``spawn`` and ``end``."""
    global _zygote
    if method == "start":
        assert _zygote is None, "start comes once"
        _zygote = {"apps": _AppsZygote, "shell": _ShellZygote}[params.pop("role")](**params)
        return _zygote.told
    assert _zygote is not None, "start comes first"
    if method == "spawn":
        for name in params["abandoned"]:
            _zygote.children.end(name)
        return _zygote.spawn(params["name"], params["options"])
    if method == "end":
        return _zygote.children.end(params["name"])
    raise ValueError(f"unknown method {method!r}")


def _any_task(root: str, load_task_ids: Callable[[str], list[str]]) -> str:
    names = sorted(os.listdir(os.path.join(root, "data", "datasets")))
    return load_task_ids(names[0].removesuffix(".txt"))[0]


def _import_late() -> None:
    from appworld.common.safety_guard import ALLOWED_MODULE_NAMES
    from inflection import pluralize, singularize

    for name in (*sorted(ALLOWED_MODULE_NAMES), *_IMPORTED_LATE):
        importlib.import_module(name)
    pluralize("no rule"), singularize("no rule")  # each tries all of its regular expressions, and so compiles them


def _warm_up_apps(task_id: str) -> None:
    """Opens a world, uses it, evaluates it, and closes it, so that only its imports and caches are left."""
    from appworld import AppWorld
    from appworld.apps.model_lib import get_cached_db_engine, get_direct_cached_sqlite3_connection

    _import_late()
    opened = apps.open_world(task_id)
    with contextlib.suppress(Exception):  # of its last call
        exec(_CALLS, {"apis": opened.apis, "print": lambda _: None})
    for _, app in opened.models.items():
        for model in app.SQLModel.name_to_model().values():
            model.overrides("_post_change")  # reads the model's source file and caches the answer
    apps.evaluate(opened)  # it imports pytest for its assertions, which takes half of its time
    AppWorld.close_all()
    shutil.rmtree(opened.base_output_directory, ignore_errors=True)
    # Connections to files must not cross a fork.
    get_direct_cached_sqlite3_connection.cache_clear()
    get_cached_db_engine.cache_clear()


_USES = """\
print(pendulum.now().format("dddd Do MMMM YYYY"), pendulum.now().diff_for_humans(), pendulum.duration(days=3).in_words())
"""
_CALLS = """\
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
profile = apis.supervisor.show_profile()
print(apis.api_docs.show_app_descriptions())
print(apis.api_docs.show_api_descriptions(app_name="spotify"))
print(apis.api_docs.show_api_doc(app_name="spotify", api_name="login"))
for name, password in passwords.items():
    try:
        user = profile["phone_number" if name == "phone" else "email"]
        token = apis[name].login(username=user, password=password)["access_token"]
        apis[name].show_account(access_token=token)
    except Exception:
        pass
print(apis.spotify.show_song_library(page_index=0, page_limit=2, access_token="wrong"))
"""
