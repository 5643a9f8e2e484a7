"""Installs the data that EH-AppWorld-v0 needs: the mini world, and the benchmark if it can be downloaded.

`appworld download data` is not used: it deletes the present data before it tries the network, and accepts any answer.
Here a folder that has its final name is complete. Everything else is an unfinished installation and is deleted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from eh_gym.errors import EHError, WorkerError
from eh_gym.worker import Worker, backend_command
from envs import backends
from envs.appworld import data
from envs.appworld.backend.unpack import DAMAGED
from envs.appworld.download import download, split_url
from envs.cache import cache_dir, expanded
from envs.commands import run

__all__ = ["counts", "install", "isolation", "report", "summary"]

_HERE = Path(__file__).parent
_BASE = "https://s3.us-west-2.amazonaws.com/appworld.dev/"
_BUNDLE = f"data-{data.DATA_VERSION}.bundle"
_COMMAND = "python -m envs install appworld"
HOW_TO = (
    f"to get it, run with access to the internet: {_COMMAND}",
    f"or without: EH_APPWORLD_DATA_URL=SOURCE {_COMMAND} (a mirror of {_BASE}, the file {_BUNDLE}, "
    "or a folder that holds AppWorld's data)",
)


def install(*, force: bool = False, benchmark: bool = True, say: Callable[[str], None] = print) -> None:
    """Installs what is missing.

    Args:
        force: Build the virtualenv and the mini world again, and delete the mini worlds of other versions. The benchmark is kept.
        benchmark: Try to get the benchmark. A failure is an error only if EH_APPWORLD_DATA_URL is set.
        say: Is called with one line for each thing done.

    Raises:
        EHError: The virtualenv or the mini world could not be built, or the benchmark is not where EH_APPWORLD_DATA_URL says.
        ConfigError: This Python is too old for AppWorld, and there is no uv.
    """
    python = backends.install("appworld", force=force, say=say)
    folder = cache_dir() / "appworld"
    try:
        with backends.locked("appworld", say):
            folder.mkdir(parents=True, exist_ok=True)
            for rubbish in folder.glob(".building-*"):
                shutil.rmtree(rubbish, ignore_errors=True)
            _install_mini(python, force, say)
            _install_benchmark(python, benchmark, say)
    except OSError as error:  # for example a full disk, or a folder without write permission
        raise EHError(f"the data could not be installed in {folder}: {error}") from error


def _install_mini(python: Path, force: bool, say: Callable[[str], None]) -> None:
    target = data.mini_dir()
    if target.is_dir() and not force:
        say(f"appworld: the mini world ({len(data.task_ids('mini'))} tasks) is in {target}")
        return
    say(f"appworld: building the mini world in {target}")
    with _building(target) as (world, home):
        command = [str(python), "-B", str(data.BUILDER), str(world / "judge")]
        run(command, hint="please report this", cwd=home, home=home)
        data.check_root(world / "judge", {"mini": None})
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
        source = _source(say)
        say("appworld: unpacking and checking the benchmark")
        _unpack(python, source, target)
    except EHError as error:
        if os.environ.get("EH_APPWORLD_DATA_URL"):
            raise
        for line in (f"the benchmark could not be installed: {error}", "only the mini world is installed", *HOW_TO):
            say(f"appworld: {line}")
        return
    say(f"appworld: the benchmark is in {target}")


def _source(say: Callable[[str], None]) -> Path:
    """The benchmark's bundle, or a folder with its data: what EH_APPWORLD_DATA_URL names, or else a download."""
    base = os.environ.get("EH_APPWORLD_DATA_URL") or _BASE
    parts = split_url(base)
    named = urllib.request.url2pathname(parts.path) if parts.scheme == "file" else base
    path = expanded(named, "EH_APPWORLD_DATA_URL")
    if (path / "data" / "tasks").is_dir():
        return path
    if path.is_dir():
        path = path / _BUNDLE
    if path.is_file():
        return path
    if parts.scheme == "file":
        raise EHError(f"EH_APPWORLD_DATA_URL is {base}, and {path} is not a file")
    url = base if parts.path.endswith(".bundle") else f"{base.rstrip('/')}/{_BUNDLE}"
    target = _downloads() / _BUNDLE
    if not target.is_file():
        say(f"appworld: downloading {url}")
        download(url, target)
    return target


def _unpack(python: Path, bundle: Path, target: Path) -> None:
    with _building(target) as (world, home):
        judge = world / "judge"
        if bundle.is_dir():
            shutil.copytree(bundle / "data", judge / "data")
            data.check_root(judge, data.BENCHMARK)
            return
        judge.mkdir()
        command = [str(python), "-I", "-B", str(_HERE / "backend" / "unpack.py"), str(bundle.resolve()), str(judge)]
        fault = ""
        try:
            run(command, hint="", cwd=home, home=home)
        except EHError as error:
            fault = str(error).strip().splitlines()[-1]
            if not fault.startswith(DAMAGED):  # for example a full disk or a killed process: the bundle may be good
                raise
        else:
            try:
                data.check_root(judge, data.BENCHMARK)
            except EHError as error:
                fault = str(error)
        if fault:
            _drop(bundle)  # otherwise the next run would use it again
            raise EHError(f"{bundle} is not AppWorld's data, or is damaged ({fault})")
    _drop(bundle)


def _drop(bundle: Path) -> None:
    """Removes a bundle that was downloaded. A bundle that the user named is kept."""
    if bundle.parent == _downloads():
        bundle.unlink()


def _downloads() -> Path:
    return cache_dir() / "appworld" / "downloads"


@contextmanager
def _building(target: Path) -> Iterator[tuple[Path, Path]]:
    """Yields a folder to make ``judge`` in, and one to use as the home. Then adds ``agent``, and renames to ``target``."""
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        world, home = scratch / "world", scratch / "home"
        world.mkdir()
        home.mkdir()
        yield world, home
        data.write_agent_root(world / "judge", world / "agent")
        (world / "judge").chmod(0o700)  # a world that runs as another user can see nothing of it
        data.hide(world)
        if target.exists():
            os.rename(target, scratch / "old")
        os.rename(world, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def counts() -> dict[str, int | None]:
    """Split -> the number of its tasks; None for the mini world if it is not built."""
    mini = len(data.task_ids("mini")) if data.mini_dir().is_dir() else None
    return {**data.BENCHMARK, "mini": mini}


def summary() -> str:
    """Which of the data are installed, in a few words, for ``list``."""
    mini = "mini world installed" if data.mini_dir().is_dir() else "no mini world"
    return f"{mini}, {'benchmark installed' if data.benchmark_dir().is_dir() else 'no benchmark'}"


def report() -> tuple[bool, list[str]]:
    """Whether the mini world is installed, and some lines about the data, for ``doctor``."""
    mini, lines = counts()["mini"], []
    lines.append(f"mini world: {mini} tasks" if mini else f"mini world: MISSING; to fix it, run: {_COMMAND}")
    folder = data.benchmark_dir()
    if not folder.is_dir():
        return mini is not None, [*lines, "benchmark: not installed", *(f"  {line}" for line in HOW_TO)]
    found = []
    for split in data.BENCHMARK:
        try:
            found.append(f"{split} {len(data.task_ids(split))}")
        except EHError:
            found.append(f"{split} none")
    return mini is not None, [*lines, f"benchmark: {', '.join(found)}, in {folder}"]


def isolation(python: Path) -> list[str]:
    """One line for each layer that confines the agent's code, with its state on this host, for ``doctor``."""
    worker = Worker(backend_command(python, _HERE / "backend" / "probing.py"))
    try:
        worker.start()
        layers: dict[str, tuple[bool, str]] = worker.call("probe")
    except WorkerError as error:
        return ["isolation: unknown, because its probe failed:", *(f"  {line}" for line in str(error).splitlines())]
    finally:
        worker.kill()
    lines = {layer: "in force" if there else f"missing: {what}" for layer, (there, what) in layers.items()}
    if layers["files"][0]:
        lines["files"] = "in force for contents and folders; names, sizes and times of single files can be asked for"
    width = max(map(len, lines))
    return [
        "isolation of the agent's code on this host:",
        *(f"  {layer:<{width}}  {said}" for layer, said in lines.items()),
        *(f"  {_answers(judge, layers)}" for judge in _judges()),
    ]


def _answers(judge: Path, layers: Mapping[str, tuple[bool, str]]) -> str:
    """What the agent's code can find out about the answers in a judge's folder."""
    what = f"answers in {judge}:"
    if layers["user"][0] and judge.stat().st_mode & 0o077 == 0:
        return f"{what} closed to the code's user"
    if not layers["files"][0]:
        return f"{what} OPEN to the code"
    return f"{what} closed, and their sizes too, because the folder's name cannot be guessed"


def _judges() -> Iterator[Path]:
    for split in ("train", "mini"):
        with suppress(EHError):
            yield data.roots(split).judge
