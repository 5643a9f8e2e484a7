"""Installs the data that EH-AppWorld-v0 needs: the mini world, and the benchmark if it can be downloaded.

`appworld download data` is not used: it deletes the present data before it tries the network, and accepts any answer.
Here a folder with its final name is complete.
"""

import http.client
import os
import secrets
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eh_gym.errors import EHError, WorkerError
from eh_gym.worker import Worker, backend_command
from envs import backends
from envs.appworld import data
from envs.cache import cache_dir, expanded
from envs.commands import run
from envs.description import Description

_HERE = Path(__file__).parent
_BASE = "https://s3.us-west-2.amazonaws.com/appworld.dev/"
_BUNDLE = f"data-{data.DATA_VERSION}.bundle"
_SILENCE_S = 10.0  # to reach the server, and to wait for more bytes
_COMMAND = "python -m envs install appworld"
HOW_TO = (
    f"to get it, run with access to the internet: {_COMMAND}",
    f"or without: EH_APPWORLD_DATA_URL=SOURCE {_COMMAND} (a mirror of {_BASE}, the file {_BUNDLE}, "
    "or a folder that holds AppWorld's data)",
)


def install(*, force: bool = False, benchmark: bool = True, say: Callable[[str], None] = print) -> None:
    """Installs what is missing."""
    python = backends.install("appworld", force=force, say=say)
    folder = cache_dir() / "appworld"
    try:
        with backends.locked("appworld", say):
            folder.mkdir(parents=True, exist_ok=True)
            for rubbish in folder.glob(".building-*"):
                shutil.rmtree(rubbish, ignore_errors=True)
            _install_mini(python, force, say)
            _install_benchmark(python, benchmark, say)
    except OSError as error:
        raise EHError(f"the data could not be installed in {folder}: {error}") from error


def _install_mini(python: Path, force: bool, say: Callable[[str], None]) -> None:
    target = data.mini_dir()
    if target.is_dir() and not force:
        say(f"appworld: the mini world ({len(data.task_ids('mini'))} tasks) is in {target}")
        return
    say(f"appworld: building the mini world in {target}")
    with _building(target) as (root, home):
        run([str(python), "-B", str(data.BUILDER), str(root)], hint="please report this", cwd=home, home=home)
        data.check_root(root, {"mini": None})
    if force:
        for other in {*target.parent.glob("mini-*")} - {target}:
            shutil.rmtree(other, ignore_errors=True)
    say(f"appworld: the mini world has {len(data.task_ids('mini'))} tasks")


def _install_benchmark(python: Path, wanted: bool, say: Callable[[str], None]) -> None:
    target = data.benchmark_dir()
    if target.is_dir():
        say(f"appworld: the benchmark is in {target}")
        return
    if not wanted:
        say("appworld: not downloading the benchmark because of --no-data; the mini world is installed")
        return
    try:
        with _building(target) as (root, home):
            _fetch(python, root, home, say)
            data.check_root(root, data.BENCHMARK)
    except EHError as error:
        if os.environ.get("EH_APPWORLD_DATA_URL"):
            raise
        for line in (f"the benchmark could not be installed: {error}", "only the mini world is installed", *HOW_TO):
            say(f"appworld: {line}")
        return
    say(f"appworld: the benchmark is in {target}")


def _fetch(python: Path, root: Path, home: Path, say: Callable[[str], None]) -> None:
    source = os.environ.get("EH_APPWORLD_DATA_URL") or _BASE
    bundle = expanded(source, "EH_APPWORLD_DATA_URL")
    if (bundle / "data" / "tasks").is_dir():
        shutil.copytree(bundle / "data", root / "data")
        return
    if not bundle.is_file():
        if not source.startswith(("http://", "https://")):
            raise EHError(f"{source} is neither an http address, nor a file, nor a folder with data/tasks")
        url, bundle = source if source.endswith(".bundle") else f"{source.rstrip('/')}/{_BUNDLE}", home / _BUNDLE
        say(f"appworld: downloading {url}")
        try:
            with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer, bundle.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EHError(f"{url} cannot be downloaded: {error}") from error
    root.mkdir()
    # AppWorld publishes no digest; the archive has checksums.
    command = [str(python), "-I", "-B", str(_HERE / "backend" / "unpack.py"), str(bundle.resolve()), str(root)]
    run(command, hint=f"{source} does not hold AppWorld's data, or the download is damaged", cwd=home, home=home)


@contextmanager
def _building(target: Path) -> Iterator[tuple[Path, Path]]:
    """Yields where to make AppWorld's root, and a temporary home. Then moves the root into ``target``."""
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        world, home = scratch / "world", scratch / "home"
        world.mkdir()
        home.mkdir()
        root = world / f"root-{secrets.token_hex(16)}"  # see data.py
        yield root, home
        root.chmod(0o700)
        if target.exists():
            os.rename(target, scratch / "old")
        os.rename(world, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def report(python: Path) -> tuple[bool, list[str]]:
    counts = Description(data.SPLITS, data.task_ids).counts()
    mini = counts.pop("mini")
    lines = [f"mini world: {mini} tasks" if mini else f"mini world: MISSING; to fix it, run: {_COMMAND}"]
    if any(counts.values()):
        listed = ", ".join(f"{split} {count}" for split, count in counts.items())
        lines.append(f"benchmark: {listed}, in {data.benchmark_dir()}")
    else:
        lines += ["benchmark: not installed", *(f"  {line}" for line in HOW_TO)]
    return mini > 0, lines + isolation(python)


def isolation(python: Path) -> list[str]:
    worker = Worker(backend_command(python, _HERE / "backend" / "probing.py"))
    try:
        worker.start()
        layers: dict[str, tuple[bool, str]] = worker.call("probe")
    except WorkerError as error:
        return ["isolation: unknown, because its probe failed:", *(f"  {line}" for line in str(error).splitlines())]
    finally:
        worker.kill()
    lines = {layer: "in force" if works else f"missing: {what}" for layer, (works, what) in layers.items()}
    if layers["files"][0]:
        lines["files"] = "in force for contents and folders; names, sizes and times of single files can be asked for"
    width = max(map(len, lines))
    return [
        "isolation of the agent's code on this host:",
        *(f"  {layer:<{width}}  {state}" for layer, state in lines.items()),
    ]
