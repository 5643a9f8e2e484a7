"""Small changes to AppWorld's engine, in the version that envs/appworld/data.py names, that save time.

They change no app, evaluation or answer of a world; tests/envs/appworld/test_adaptations.py compares the results. They
need one process per world.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib
import inspect
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


def apply(when: str) -> None:
    """Applies the adaptations of a stage: "before" or "after" the warm-up of the apps' zygote, or "shell"."""
    for adapt in {"before": _BEFORE_WARM_UP, "after": _AFTER_WARM_UP, "shell": _OF_SHELL}[when]:
        adapt()


def keep_app() -> None:
    """Build the FastAPI application once. The engine builds it again for every world."""
    import appworld.requester as requester

    requester.build_main_app = functools.lru_cache(maxsize=4)(requester.build_main_app)


def call_inline() -> None:
    """Answer API calls in the calling thread. The engine passes each call through two other threads.

    Every endpoint is a plain function, so the coroutines around it never wait and need no event loop.
    """
    import appworld.requester as requester
    from anyio.to_thread import run_sync
    from starlette.concurrency import run_in_threadpool

    class Portal:
        def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
            result = function(*arguments)
            if not inspect.iscoroutine(result):
                return result
            try:
                result.send(None)
            except StopIteration as stop:
                return stop.value
            raise RuntimeError("an endpoint waits for something, which the adaptation call_inline does not allow")

    class Client(requester.TestClient):  # type: ignore[misc]
        @contextlib.contextmanager
        def _portal_factory(self) -> Iterator[Portal]:
            yield Portal()

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    async def inline(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    for module in list(sys.modules.values()):
        for name, threaded in (("run_in_threadpool", run_in_threadpool), ("run_sync", run_sync)):
            if vars(module).get(name) is threaded:
                setattr(module, name, inline)
    requester.TestClient = Client


def no_shell() -> None:
    """Make no IPython shell in the apps' process: the agent's code runs elsewhere."""
    import appworld.environment as environment

    environment.InteractiveShellEmbed = lambda **_: SimpleNamespace(user_ns={}, run_cell=lambda _: None)


def load_databases_once() -> None:
    """Load a world's 12 databases once. The engine loads them three times.

    Of the first two sets it uses only a path and the models' classes.
    """
    import appworld.environment as environment
    from appworld.apps.model_lib import ModelHashHandler
    from appworld.collections.models import ModelCollection
    from appworld.common.utils import import_models_module
    from appworld.task import Task

    def task(**options: Any) -> Task:
        loaded = Task.load(**options)
        path = loaded.models_from_db_home_path
        loaded._model_collection = SimpleNamespace(from_db_home_path=path, close=lambda: None)
        return loaded

    def models(to_db_home_path: str, from_db_home_path: str, load_apps: list[str]) -> ModelCollection:
        collection = ModelCollection()
        collection._from_db_home_path, collection._to_db_home_path = from_db_home_path, to_db_home_path
        for app in dict.fromkeys([*load_apps, "admin", "supervisor"]):
            module = import_models_module(app)
            collection[app] = module.SQLModel.name_to_model()
            collection[app].SQLModel = module.SQLModel
        collection.clear_ids_record_hashes()
        ModelHashHandler.load(from_db_home_path, to_db_home_path)
        return collection

    environment.Task, environment.ModelCollection = SimpleNamespace(load=task), SimpleNamespace(load=models)


def inherit_databases() -> None:
    """Hold the base databases in the zygote's memory, which forked worlds share until they write.

    There are two sets, because an evaluation compares two. They are in memory, because SQLite forbids using a
    connection to a file across a fork. Their engines are made here too, which saves a fifth of a reset.
    """
    import appworld.apps.model_lib as library
    from appworld.apps import get_all_apps
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import StaticPool
    from sqlmodel import create_engine

    base = library.get_db_home_path(storage_type="disk", type="base")
    ready: dict[str, list[tuple[Any, list[str]]]] = {}

    def prepared(source: sqlite3.Connection) -> tuple[Any, list[str]]:
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        source.backup(copy)
        connections, address = [copy], list[str]()

        def connect() -> sqlite3.Connection:
            # Closing the engine opens one more connection.
            return connections.pop() if connections else sqlite3.connect(address[0], uri=True, check_same_thread=False)

        engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)
        engine.raw_connection()
        return engine, address

    for app in get_all_apps():
        source = sqlite3.connect(f"file:{os.path.join(base, app)}.db?mode=ro", uri=True)
        ready[app] = [prepared(source) for _ in range(2)]
        source.close()
    get_db_args = library.get_db_args

    def take(to_path: str, from_path: str | None = None) -> tuple[Any, Any]:
        app = os.path.splitext(os.path.basename(to_path))[0]
        if not (to_path.startswith(":memory:task_") and (from_path or "").endswith(".jsonl") and ready.get(app)):
            return get_db_args(to_path, from_path)  # type: ignore[no-any-return]
        engine, address = ready[app].pop()
        address.append(f"file:{to_path.removeprefix(':memory:')}?mode=memory&cache=shared")
        engine.url = make_url(f"sqlite:///{address[0]}&uri=true")
        tracker = library.DBChangesTracker(engine)
        tracker.restart()
        tracker.add_changes(library.apply_db_changes(engine.raw_connection().connection, from_path))
        return engine, tracker

    library.get_db_args = take


def keep_details() -> None:
    """Look up a database's url, path and connection once. AppWorld does so at every switch of databases."""
    from appworld.apps.model_lib import Database

    look_up = Database._get_engine_to_details

    def details(engine: Any) -> Any:
        if "_eh_details" not in engine.__dict__:
            engine.__dict__["_eh_details"] = look_up(engine)
        return engine.__dict__["_eh_details"]

    Database._get_engine_to_details = staticmethod(details)


def keep_patterns() -> None:
    """Keep every compiled regular expression. Python keeps 512, and the apps use more."""
    re._MAXCACHE = 1 << 20  # type: ignore[attr-defined]


def keep_guard() -> None:
    """Find the guarded modules once. The safety guard looks up about 130 names at each step."""
    from appworld.common.safety_guard import SafetyGuard

    SafetyGuard.module_by_path = staticmethod(functools.cache(SafetyGuard.module_by_path))


def stay_frozen() -> None:
    """Freeze the clock in the zygote, so that every module is already patched when a world freezes it."""
    from freezegun import freeze_time

    freeze_time(datetime.datetime(2023, 5, 18, 12)).start()


def save_nothing() -> None:
    """Do not write the engine's files when a world opens and after each step.

    Call ``flush`` before an evaluation, which reads them.
    """
    from appworld.environment import AppWorld

    for name in ("_prepare_directories", "_save_state", "save_logs"):
        _original[name] = getattr(AppWorld, name)
        setattr(AppWorld, name, lambda *_: None)


_original: dict[str, Callable[..., None]] = {}


def flush(world: Any) -> None:
    """Writes the state that the evaluation reads."""
    _original.get("_save_state", type(world)._save_state)(world, world.output_db_home_path_on_disk)


def save(world: Any) -> None:
    _original["_prepare_directories"](world)
    flush(world)
    _original["save_logs"](world)


def sign_privately() -> None:
    """Sign access tokens with a secret that only the apps' processes can read.

    The engine's own is a constant, with which the agent's code could sign tokens for anybody. This one depends on the
    data alone, so that episodes can be repeated.
    """
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import get_db_home_path
    from fastapi_login.secrets import to_secret

    with open(os.path.join(get_db_home_path(storage_type="disk", type="base"), "supervisor.db"), "rb") as passwords:
        secret = hashlib.sha256(passwords.read()).digest()
    for app in get_all_apps():
        if manager := getattr(importlib.import_module(f"appworld.apps.{app}.apis"), "logging_manager", None):
            manager.secret = to_secret({"algorithms": manager.algorithm, "secret": secret})


# Later ones build on earlier ones.
_BEFORE_WARM_UP = (no_shell, keep_app, call_inline, keep_details, keep_patterns, keep_guard, sign_privately)
_AFTER_WARM_UP = (load_databases_once, inherit_databases, save_nothing, stay_frozen)
_OF_SHELL = (keep_patterns, keep_guard)
