"""A zygote: imports AppWorld once, and then forks a process for every world.

There are two zygotes. One forks the processes of the apps (apps.py). The other forks those of the agents' code
(shell.py) and never holds the apps' data. Each is a worker's backend (eh_gym/worker/child.py).
"""

import contextlib
import functools
import gc
import importlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from . import adaptations, apps, cgroups, confine, shell
from .children import Children
from .libc import libc

# Imported before any fork, because a world's user may be unable to read the virtualenv.
_IMPORTED_LATE = """
    appworld.common.random faker inflection psutil secrets xxhash zipfile _strptime unittest.mock
    pendulum.formatting.difference_formatter pendulum.locales.en.locale encodings.ascii encodings.cp1252 encodings.idna
    encodings.latin_1 encodings.punycode encodings.raw_unicode_escape encodings.unicode_escape encodings.utf_7
    encodings.utf_8_sig encodings.utf_16 encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.base64_codec
    encodings.hex_codec encodings.rot_13
"""
_Life = Callable[[Mapping[str, Any], socket.socket, int], None]  # (options, connection, slot)

_children: Children
_life: _Life


def handle(method: str, params: dict[str, Any]) -> Any:
    global _children, _life
    if method == "load":
        folder = params["folder"]
        _children = Children(folder)
        cgroups.processors()  # remembered: worlds can't read the container's files
        os.environ.update(IPYTHONDIR=folder, APPWORLD_ROOT=folder, PYTHON_DOTENV_DISABLED="1")
        os.chdir(folder)
        gc.disable()  # saves a fifth of the start
        _import_late()
        return None
    if method == "start":
        told, _life = (_begin_apps if "root" in params else _begin_shell)(**params)
        gc.collect()
        gc.freeze()
        gc.enable()
        _use_huge_pages()
        _children.begin()
        return told
    if method == "spawn":
        _children.end(params["abandoned"], wait=False)
        return _children.spawn(params["name"], functools.partial(_life, params["options"]))
    if method == "end":
        return _children.end(params["names"], wait=True)
    raise ValueError(f"unknown method {method!r}")


def _begin_apps(root: str) -> tuple[dict[str, Any], _Life]:
    confine.isolate_apps()
    import appworld
    from appworld.task import load_task_ids

    appworld.update_root(root)
    adaptations.apply("before")
    names = sorted(os.listdir(os.path.join(root, "data", "datasets")))
    _warm_up_apps(load_task_ids(names[0].removesuffix(".txt"))[0])
    adaptations.apply("after")

    def life(options: Mapping[str, Any], connection: socket.socket, slot: int) -> None:
        confine.limit(confine.Limits(**options["limits"]))
        apps.serve(connection, options)

    return {"apis": shell.table()}, life


def _begin_shell(apis: Mapping[str, Any], confined: bool) -> tuple[dict[str, Any], _Life]:
    adaptations.apply("shell")
    throwaway = shell.Shell(apis)
    throwaway.warm_up(_USES, "1 / 0", "x =")
    agents = shell.Shell(apis)
    if confined:
        confine.isolate_host()
    readable = confine.interpreter_folders()

    def life(options: Mapping[str, Any], connection: socket.socket, slot: int) -> None:
        throwaway.warm_up()  # copies the memory pages now, not in the first step
        agents.begin(connection, options)
        if confined:  # last, because it lowers the priority
            confine.confine(slot, confine.Limits(**options["limits"]), readable)
        agents.serve(options["max_output_chars"])

    return {}, life


def _use_huge_pages() -> None:
    """Moves this process's memory to huge pages where possible (Linux 6.1): a fork takes 3 ms, not 8."""
    collapse = 25  # MADV_COLLAPSE
    with contextlib.suppress(OSError):
        with open("/proc/self/maps") as file:
            regions = [line.split() for line in file]
        for addresses, rights, _, _, inode, *_ in regions:
            if rights == "rw-p" and inode == "0":
                first, last = (int(address, 16) for address in addresses.split("-"))
                libc("madvise", first, last - first, collapse)


def _import_late() -> None:
    from appworld.common.safety_guard import ALLOWED_MODULE_NAMES
    from inflection import pluralize, singularize

    for name in (*sorted(ALLOWED_MODULE_NAMES), *_IMPORTED_LATE.split()):
        importlib.import_module(name)
    pluralize("no rule"), singularize("no rule")  # compiles their regular expressions


def _warm_up_apps(task_id: str) -> None:
    from appworld import AppWorld
    from appworld.apps.model_lib import get_cached_db_engine, get_direct_cached_sqlite3_connection

    opened = apps.open_world(task_id)
    with contextlib.suppress(Exception):
        exec(_CALLS, {"apis": opened.apis, "print": lambda _: None})
    for _, app in opened.models.items():
        for model in app.SQLModel.name_to_model().values():
            model.overrides("_post_change")  # cached
    apps.evaluate(opened)  # imports pytest
    AppWorld.close_all()
    # Connections to files must not cross a fork.
    get_direct_cached_sqlite3_connection.cache_clear()
    get_cached_db_engine.cache_clear()


_USES = """\
now = pendulum.now()
print(now.format("dddd Do MMMM YYYY"), now.diff_for_humans(), pendulum.duration(days=3).in_words())
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
