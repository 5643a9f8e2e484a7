"""The folder of a sweep: the run folders ``runs/NAME``, and the manifests ``suites/SUITE.json``, which list a suite's runs.

A run is named for its settings and its seed. So several suites can share a run, and a sweep that is started again finds it.
`harness.grpo` writes the run folders.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, StateError
from harness.experiments.suites import SuiteArm
from harness.run.files import write_whole
from harness.settings.grpo import GRPOConfig, paper_defaults

__all__ = [
    "Manifest",
    "all_seeds",
    "differing_settings",
    "has_ended",
    "read_manifest",
    "run_name",
    "write_manifest",
]

# What a manifest has besides the arms.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "suite": str,
    "quick": bool,
    "env": str,
    "model": str,
    "threshold": (int, float),
    "base": dict,
}
_NOT_SETTINGS = ("recipe", "resume", "out", "seed")


def run_name(config: GRPOConfig) -> str:
    """Returns the name of a run: its environment, its wrapper, a digest of its settings, and its seed.

    The digest covers the settings that differ from the paper's. So a new setting does not rename earlier runs.

    >>> run_name(GRPOConfig(updates=3)) == run_name(GRPOConfig(updates=3, out=Path("x")))
    True
    """
    differing = _differing(json.loads(config.to_json()), json.loads(type(config)(**paper_defaults()).to_json()))
    digest = hashlib.blake2b(json.dumps(differing, sort_keys=True).encode(), digest_size=5).hexdigest()
    return f"{config.env_name}-{config.wrapper_name}-{digest}-seed{config.seed}"


def _differing(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _differing(value, defaults[name]) if isinstance(value, dict) else value
        for name, value in values.items()
        if name not in _NOT_SETTINGS and value != defaults[name]
    }


def has_ended(run_dir: Path) -> bool:
    """Whether a run has ended: ``evaluation.json`` is the last file that it writes."""
    return (run_dir / "evaluation.json").exists()


@dataclass(frozen=True)
class Manifest:
    """The runs of one suite.

    Attributes:
        suite: The name of the suite.
        quick: Whether the sweep was ``--quick``.
        env: The id of the environment.
        model: The model.
        threshold: The success rate up to which the suite's table counts tokens.
        base: The settings that all arms share, as in a run's ``config.json``.
        arms: For each arm its label, its own settings, and the run folder of each seed.
    """

    suite: str
    quick: bool
    env: str
    model: str
    threshold: float
    base: dict[str, Any]
    arms: tuple[tuple[str, dict[str, Any], dict[int, Path]], ...]


def write_manifest(
    out: Path,
    suite: str,
    base: GRPOConfig,
    arms: Sequence[SuiteArm],
    seeds: Sequence[int],
    *,
    quick: bool,
    threshold: float,
) -> Path:
    """Writes ``OUT/suites/SUITE.json`` and returns its path. The run folders in it are relative to the file's own folder."""
    path = out / "suites" / f"{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "suite": suite,
        "quick": quick,
        "env": base.env,
        "model": base.model,
        "threshold": threshold,
        "base": _shared_settings(base),
        "arms": [
            {
                "label": arm.label,
                "settings": dict(arm.settings),
                "runs": [
                    {
                        "seed": seed,
                        "folder": f"../runs/{run_name(dataclasses.replace(base, seed=seed, **arm.settings))}",
                    }
                    for seed in seeds
                ],
            }
            for arm in arms
        ],
    }
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False))
    return path


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of a suite. Its run folders become relative to the working directory.

    Raises:
        StateError: The manifest is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for name, kind in _FIELDS.items():
            if not isinstance(content[name], kind):
                raise TypeError(f"{name} is {content[name]!r:.80}")
        arms = tuple(
            (
                arm["label"],
                arm["settings"],
                {int(run["seed"]): Path(os.path.normpath(path.parent / run["folder"])) for run in arm["runs"]},
            )
            for arm in content["arms"]
        )
        if not all(isinstance(settings, dict) for _, settings, _ in arms):
            raise TypeError("an arm's settings are no object")
        return Manifest(**{name: content[name] for name in _FIELDS}, arms=arms)
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is not a manifest of a sweep ({error!r}); run the sweep again, which writes it"
        ) from error


def differing_settings(base: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the names of the settings in which the bases of two manifests differ. One may be without a newer setting."""
    return [name for name in base if name in other and base[name] != other[name]]


def all_seeds(out: Path, suite: str, base: GRPOConfig, seeds: Sequence[int]) -> list[int]:
    """Returns the seeds, and those that an earlier sweep of the suite in this folder had, in order.

    Raises:
        ConfigError: The earlier sweep had other settings.
    """
    path = out / "suites" / f"{suite}.json"
    try:
        earlier = read_manifest(path) if path.exists() else None
    except StateError:  # a damaged one is written again
        earlier = None
    if earlier is None:
        return list(seeds)
    if differing := differing_settings(earlier.base, _shared_settings(base)):
        raise ConfigError(
            f"{out} has the suite {suite} with other settings ({', '.join(differing)}); choose another --out"
        )
    return sorted({*seeds, *(seed for _, _, runs in earlier.arms for seed in runs)})


def _shared_settings(base: GRPOConfig) -> dict[str, Any]:
    return {k: v for k, v in json.loads(base.to_json()).items() if k not in _NOT_SETTINGS}
