"""The folder of a sweep: the run folders ``runs/NAME``, and ``suites/SUITE.json``, which lists a suite's runs.

A run is named for its settings and its seed. So several suites can share a run, and a sweep that is started again finds
it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, StateError
from harness.records.files import read_object, write_whole
from harness.settings.grpo import GRPOConfig
from harness.settings.section import flat


def run_name(config: GRPOConfig) -> str:
    """Returns the name of a run: its environment, its wrapper, a digest of its settings, and its seed.

    The digest covers the settings that differ from the paper's, so that a new setting does not rename earlier runs.

    >>> run_name(GRPOConfig(updates=3)) == run_name(GRPOConfig(updates=3, out=Path("x")))
    True
    """
    paper = _settings(type(config)())
    differing = {name: value for name, value in _settings(config).items() if paper.get(name) != value}
    digest = hashlib.blake2b(json.dumps(differing, sort_keys=True).encode(), digest_size=5).hexdigest()
    return f"{config.environment.name}-{config.wrapper.rpartition(':')[2]}-{digest}-seed{config.seed}"


def _settings(config: GRPOConfig) -> dict[str, Any]:
    """The settings as JSON keeps them, by the names of their flags; those of a run alone are left out."""
    kept: dict[str, Any] = json.loads(json.dumps(flat(config), default=str))
    return {name: value for name, value in kept.items() if name not in ("out", "seed")}


def has_ended(run_dir: Path) -> bool:
    """Whether a run has ended: ``evaluation.json`` is the last file that it writes."""
    return (run_dir / "evaluation.json").exists()


def write_manifest(
    out: Path,
    suite: str,
    base: GRPOConfig,
    arms: Mapping[str, tuple[Mapping[str, Any], GRPOConfig]],
    seeds: Iterable[int],
    threshold: float,
) -> None:
    """Writes ``OUT/suites/SUITE.json``, with the seeds of an earlier sweep of the suite too. A damaged one is replaced.

    `base` are the settings that the arms share. `arms` has two values for each label: the settings that the arm sets,
    by the names of their flags, and the arm's complete settings.
    """
    path, shared = out / "suites" / f"{suite}.json", _settings(base)
    try:
        earlier = read_object(path)
        before = earlier["base"]
        if differing := [name for name in before if name in shared and before[name] != shared[name]]:
            raise ConfigError(
                f"{out} has the suite {suite} with other settings ({', '.join(differing)}); choose another --out"
            )
        seeds = sorted({*seeds, *(run["seed"] for arm in earlier["arms"] for run in arm["runs"])})
    except StateError:
        path.parent.mkdir(parents=True, exist_ok=True)
    listed = []
    for label, (arm, config) in arms.items():
        names = {seed: run_name(dataclasses.replace(config, seed=seed)) for seed in seeds}
        runs = [{"seed": seed, "folder": f"../runs/{name}"} for seed, name in names.items()]
        settings = {"wrapper": config.wrapper, "k0": flat(config).get("k0"), **arm}
        listed.append({"label": label, "settings": settings, "runs": runs})
    content = {"suite": suite, "env": shared["env"], "model": shared["model"], "threshold": threshold}
    write_whole(path, json.dumps(content | {"base": shared, "arms": listed}, indent=2, ensure_ascii=False, default=str))
