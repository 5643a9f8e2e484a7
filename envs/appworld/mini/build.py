"""Builds the mini world: ``python build.py DEST [SCENARIO]`` in AppWorld's virtualenv writes DEST/data."""

import contextlib
import importlib
import io
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def _make_and_check(data: Path, identifier: str, name: str, number: int) -> str:
    from . import check, root
    from .scenarios import SCENARIOS

    with contextlib.redirect_stdout(io.StringIO()):
        task = root.write_task(data, identifier, SCENARIOS[name], SCENARIOS[name].variants[number - 1])
        check.check_task(data, identifier, task)
    return identifier


def build(dest: Path, only: str) -> None:
    import appworld

    from . import root
    from .scenarios import SCENARIOS
    from .task import task_id

    (data := dest / "data").mkdir(parents=True)
    appworld.update_root(str(dest))
    with contextlib.redirect_stdout(io.StringIO()):
        root.write_base(data)
    plan = [
        (data, task_id(name, number), name, number)
        for name, scenario in SCENARIOS.items()
        if only in ("", name)
        for number in range(1, len(scenario.variants) + 1)
    ]
    # Forked, so that appworld is imported only once.
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), mp_context=get_context("fork")) as pool:
        made = list(pool.map(_make_and_check, *zip(*plan, strict=True)))
    (data / "datasets").mkdir()
    (data / "datasets" / "mini.txt").write_text("\n".join(made) + "\n")
    shutil.rmtree(dest / "experiments", ignore_errors=True)


if __name__ == "__main__":
    # This folder is imported as a package.
    sys.path[:1] = []
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    importlib.import_module("mini.build").build(Path(sys.argv[1]).resolve(), only="".join(sys.argv[2:]))
