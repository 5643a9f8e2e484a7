"""Run names and manifests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from eh_gym.errors import StateError
from harness.experiments.manifest import read_manifest, run_name, write_manifest
from harness.experiments.suites import SuiteArm
from harness.settings.grpo import GRPOConfig
from harness.settings.presets import preset

BASE = preset([])


def test_a_run_is_named_for_its_settings_and_seed_alone() -> None:
    name = run_name(BASE)
    assert name.startswith("EH-Cabinet-v0-elastic-")
    assert name.endswith("-seed0")
    same = dataclasses.replace(BASE, out=Path("a"), recipe=Path("b"), resume=Path("c"))
    assert run_name(same) == name
    assert run_name(dataclasses.replace(BASE, seed=1)) == name.replace("seed0", "seed1")
    start = dataclasses.replace(BASE.warm_start, episodes=7)
    others = [{"k0": 11}, {"wrapper": "fixed"}, {"alpha": 0.3}, {"warm_start": start}]
    assert len({name, *(run_name(dataclasses.replace(BASE, **o)) for o in others)}) == 5  # type: ignore[arg-type]


def test_a_setting_that_is_new_and_left_alone_renames_no_run() -> None:
    @dataclasses.dataclass(frozen=True)
    class Later(GRPOConfig):
        invented: int = 3

    values = {f.name: getattr(BASE, f.name) for f in dataclasses.fields(BASE)}
    assert run_name(Later(**values)) == run_name(BASE)
    assert run_name(Later(**values, invented=4)) != run_name(BASE)


def write(out: Path) -> Path:
    arms = [SuiteArm("α=0.1", {"alpha": 0.1}), SuiteArm("α=1", {"alpha": 1.0})]
    return write_manifest(out, "ema", BASE, arms, [4, 5], quick=True, threshold=0.8)


def test_a_manifest_names_each_arm_s_runs(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert path == tmp_path / "suites" / "ema.json"
    content = json.loads(path.read_text())
    assert {k: content[k] for k in ("suite", "quick", "env", "model", "threshold")} == {
        "suite": "ema", "quick": True, "env": "EH-Cabinet-v0", "model": "tiny", "threshold": 0.8,
    }  # fmt: skip
    name = run_name(dataclasses.replace(BASE, alpha=1.0, seed=5))
    assert content["arms"][1]["settings"] == {"alpha": 1.0}
    assert content["arms"][1]["runs"][1] == {"seed": 5, "folder": f"../runs/{name}"}

    manifest = read_manifest(path)
    _, _, runs = manifest.arms[1]
    assert runs[5] == tmp_path / "runs" / name


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_text()
    edited = [whole.replace("0.8", "null"), whole.replace('"settings": {', '"settings": [{}], "was": {')]
    for damaged in (whole[:50], "[]", *edited):
        assert damaged != whole
        path.write_text(damaged)
        with pytest.raises(StateError, match=r"ema\.json"):
            read_manifest(path)
