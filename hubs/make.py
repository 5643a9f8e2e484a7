"""Writes the folders that the hubs of OpenEnv and verifiers take: `python hubs/make.py OUT`.

Each folder is a template of this folder with an environment's name and texts in it. Those for OpenEnv also hold the
code that their image installs, as this checkout has it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any

HUBS = Path(__file__).parent
ROOT = HUBS.parent
CODE = ("eh_gym", "envs", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "requirements/lock.txt")

DEFAULTS = {"NOTE": "", "SPLITS": "train dev test", "INSTALL": "", "START": ""}

# The values of the templates' words, __WORD__, that are not in DEFAULTS. OpenEnv's probe plays the actions from seed 0.
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "eh_cabinet": {
        "ENV_ID": "EH-Cabinet-v0",
        "WHAT": "Follow a chain of notes through drawers to a code, in 3 to 33 steps: built in, for first trials.",
        "TASKS": "`train` is generated without end; `dev` and `test` are fixed.",
        "ACTIONS": [{"message": "list()"}, {"message": "open(a)"}],
        "MEMORY_MB": "1024",
    },
    "eh_bfcl": {
        "ENV_ID": "EH-BFCL-v0",
        "WHAT": (
            "The multi-turn tasks of the Berkeley Function-Calling Leaderboard, with the official rules and verdicts."
        ),
        "TASKS": "800 tasks, split by scenario: 480 `train`, 128 `dev`, 192 `test`.",
        "INSTALL": "RUN python -m envs install bfcl --no-data\n",
        "ACTIONS": [{"message": "[ls()]"}, {"message": "[pwd()]"}],
        "MEMORY_MB": "2048",
    },
    "eh_tau2": {
        "ENV_ID": "EH-Tau2-v0",
        "WHAT": "The telecom tickets of tau2-bench in solo mode: 43 tools, judged by the official evaluators.",
        "TASKS": "74 `train`, 40 `test`.",
        "SPLITS": "train test",
        "INSTALL": "RUN python -m envs install tau2\n",
        "ACTIONS": [{"message": "check_status_bar()"}, {"message": "run_speed_test()"}],
        "MEMORY_MB": "2048",
    },
    "eh_appworld": {
        "ENV_ID": "EH-AppWorld-v0",
        "WHAT": "The tasks of AppWorld: write Python against 457 APIs of nine apps, judged by the official evaluation.",
        "TASKS": "90 `train`, 57 `dev`.",
        "NOTE": " A container fetches AppWorld when it starts, which takes minutes; the image contains nothing of it.",
        "SPLITS": "train dev",
        "START": "python -m envs install appworld && ",
        "ACTIONS": [],
        "MEMORY_MB": "8192",
    },
}


def make(out: Path) -> list[Path]:
    """Writes the folders, and returns them.

    Args:
        out: A folder that does not exist yet, or an empty one.

    Raises:
        FileExistsError: The folder has files.
    """
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} has files; name a new folder")
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    made = []
    for name, texts in ENVIRONMENTS.items():
        words = {
            **DEFAULTS,
            **texts,
            "VERSION": setup["metadata"]["version"],
            "NAME": name,
            "DASHED": name.replace("_", "-"),
            "CLASS": name.title().replace("_", ""),
            "BACKEND": name.removeprefix("eh_"),
        }
        folder = out / "openenv" / f"{name}_env"
        _fill(HUBS / "openenv", folder, words)
        if not texts["ACTIONS"]:  # a container that installs when it starts is not ready when the validator asks
            shutil.rmtree(folder / "validation")
            manifest = folder / "openenv.yaml"
            manifest.write_text(manifest.read_text().partition("  execution:")[0])
        _copy_code(folder / "project")
        made.append(folder)
        if name != "eh_cabinet":  # GymTaskset's own default
            folder = out / "verifiers" / name
            _fill(HUBS / "verifiers", folder, words)
            made.append(folder)
    return made


def _fill(template: Path, folder: Path, words: Mapping[str, Any]) -> None:
    """Copies a template's files, with values for the words in their names and texts."""
    for source in sorted(path for path in template.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        target = folder / _filled(str(source.relative_to(template)), words)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_filled(source.read_text(), words))


def _filled(text: str, words: Mapping[str, Any]) -> str:
    for word, value in words.items():
        text = text.replace(f"__{word}__", value if isinstance(value, str) else json.dumps(value))
    return text


def _copy_code(folder: Path) -> None:
    for name in CODE:
        target = folder / Path(name).name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="a new folder")
    for written in make(parser.parse_args().out):
        print(written)
