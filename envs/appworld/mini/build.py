"""Builds the mini world: ``python build.py DEST`` with the interpreter of AppWorld's virtualenv writes DEST/data.

It is built and checked in a folder next to DEST and renamed at the end, so DEST is either complete or not there. Nothing is
written elsewhere. The same sources give the same tasks, answers and databases.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

_PACKAGE = "eh_appworld_mini"


def _load_package() -> None:
    """Make this folder importable as a package, without putting it (and names such as task.py) on the module path."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)


def _own(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _make_and_check(data: Path, identifier: str, generator: str, variant: tuple[Any, ...]) -> str:
    """Write one task, then play its solutions. It runs in a process of the pool."""
    with contextlib.redirect_stdout(io.StringIO()):
        _own("root").write_task(data, identifier, _own("task").generators()[generator], variant)
        _own("check").check_task(data, identifier)
    return identifier


def build(root: Path, processes: int, only: str = "", base: Path | None = None) -> list[str]:
    """Build root/data and return the ids of its tasks."""
    import appworld

    appworld.update_root(str(root))
    data = root / "data"
    data.mkdir()
    if base is None:
        with contextlib.redirect_stdout(io.StringIO()):
            _own("root").write_base(data, processes)
    else:
        for part in ("base_dbs", "api_docs"):
            shutil.copytree(base / "data" / part, data / part)
        shutil.copy(base / "data" / "version.txt", data)
    task_id, generators = _own("task").task_id, _own("task").generators()
    plan = [
        (task_id(name, number), name, variant)
        for name, module in generators.items()
        if only in name
        for number, variant in enumerate(module.VARIANTS, 1)
    ]
    if len({identifier for identifier, _, _ in plan}) != len(plan):
        raise ValueError("two generators have the same id; rename one")
    # The processes are forked, so that appworld is imported only once; that takes seconds.
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        jobs = [pool.submit(_make_and_check, data, *entry) for entry in plan]
        try:
            done = [job.result() for job in jobs]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an unsound task, the others are not made
    _own("root").write_dataset(data, done)
    shutil.rmtree(root / "experiments", ignore_errors=True)
    return done


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Build the mini AppWorld world into DEST/data.")
    parser.add_argument("dest", type=Path, help="folder to make; it must be missing or empty")
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1), help="processes to use")
    parser.add_argument("--only", default="", help="use only the generators whose name contains this text")
    parser.add_argument("--base", type=Path, help="folder of an earlier world, to take all but the tasks from")
    args = parser.parse_args()
    base = args.base.resolve() if args.base else None
    dest = args.dest.resolve()
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        print(f"{dest} exists and is not empty; remove it first", file=sys.stderr)
        return 2
    started = time.monotonic()
    dest.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{dest.name}.", dir=dest.parent))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # again at exit: IPython may write its history late
    root = scratch / "root"
    try:
        for folder in ("home", "ipython", "cache", "root"):
            (scratch / folder).mkdir()
        os.environ.update(
            HOME=str(scratch / "home"), IPYTHONDIR=str(scratch / "ipython"), APPWORLD_CACHE=str(scratch / "cache"),
            APPWORLD_ROOT=str(root),
        )  # fmt: skip
        os.chdir(root)
        sys.dont_write_bytecode = True
        _load_package()
        tasks = build(root, args.processes, args.only, base)
        os.chdir(dest.parent)
        root.chmod(0o755)
        root.rename(dest)
    except Exception as error:
        print(f"the mini world could not be built: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        os.chdir(dest.parent)
        shutil.rmtree(scratch, ignore_errors=True)
    generators = len({task.split("_")[0] for task in tasks})
    print(f"{len(tasks)} tasks of {generators} generators in {dest} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
