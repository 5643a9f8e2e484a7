"""What all benchmarks have in common: --help, --smoke, the lines that say how a result was made, models and runs."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

import eh_gym  # noqa: F401 - registers the ids
from eh_gym.errors import ConfigError, EHError
from harness.records.versions import cpu_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from harness.model.policy import Policy

SMALL_RUN = shlex.split("--updates 1 --tasks-per-update 2 --group-size 2 --slots 4 --warm-start.episodes 0")
"""Flags of `harness.grpo` for a run of seconds, for --smoke."""


def new_parser(text: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose --help shows the benchmark's docstring as it is written."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def parse(parser: argparse.ArgumentParser, **smoke: Any) -> argparse.Namespace:
    """Adds --smoke, which makes the benchmark take seconds with these defaults, and parses the command line."""
    parser.add_argument("--smoke", action="store_true", help="try the script in seconds; the figures then mean nothing")
    if "--smoke" in sys.argv:
        parser.set_defaults(**smoke)
    return parser.parse_args()


def command() -> str:
    """Returns the command that runs, as a result's first line names it."""
    threads = os.environ.get("OMP_NUM_THREADS")
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    return f"$ {f'OMP_NUM_THREADS={threads} ' if threads else ''}{shlex.join(words)}"


def print_heading(*packages: str, **further: str) -> None:
    """Prints the command, the machine, and the versions of these packages and of `further` ones elsewhere."""
    print(command())
    print(f"machine     {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    versions = {name: version(name) for name in packages} | further
    print(f"versions    Python {platform.python_version()}", *map(" ".join, versions.items()), sep=", ", flush=True)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the model that `load_model` takes."""
    parser.add_argument("model", nargs="?", default="", help="a Hugging Face folder or an installed model's name")


def load_model(args: argparse.Namespace, **loading: Any) -> Policy:
    """Loads the model that `args.model` names, or with --smoke a tiny one. Other benchmarks need no torch."""
    from harness.clone.tiny import new_tiny_policy
    from harness.model.policy import load_policy

    if not args.model and not args.smoke:
        raise ConfigError("the model is missing; give a Hugging Face folder, or --smoke for a tiny one")
    with tempfile.TemporaryDirectory(prefix="eh-benchmark-") as folder:
        if not args.model:
            new_tiny_policy(gym.make("EH-Cabinet-v0"), seed=0).save(Path(folder))
        return load_policy(args.model or folder, **loading)


def trained(folder: Path, words: Sequence[str]) -> Path:
    """Trains a run with these flags of `harness.grpo` on one thread, unless it has ended; returns its folder.

    A killed one is resumed. One that fails raises EHError.
    """
    from harness.sweep.manifest import has_ended  # it needs the extra `train`, and some benchmarks do not

    if not has_ended(folder):
        begun = (folder / "config.json").exists()
        # The results are of clones of longer episodes than those of the quick start today.
        clone = [] if "--warm-start.episodes" in words else ["--warm-start.max-optimal-steps", "9"]
        arguments = ["--resume", str(folder)] if begun else ["--out", str(folder), *clone, *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        training = [sys.executable, "-m", "harness.grpo", *arguments]
        done = subprocess.run(training, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            last = done.stdout.strip().rpartition("\n")[2]
            raise EHError(f"the run in {folder} failed; its last line: {last}")
    return folder


def interval(difference: tuple[float, float, float] | None) -> str:
    """A difference in points with its interval: (0.02, -0.01, 0.05) is "+2.0 (-1.0 to +5.0)"."""
    return "—" if difference is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * value for value in difference))


def save(figure: Figure, path: Path) -> None:
    """Writes a figure whose panels have a thin grid and no frame above or to the right."""
    for axes in figure.axes:
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def run(main: Callable[[], None]) -> None:
    """Runs a benchmark. A missing package, or an error that is meant for the user, ends it with one line."""
    try:
        main()
    except EHError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed; docs/installation.md has the extras")
