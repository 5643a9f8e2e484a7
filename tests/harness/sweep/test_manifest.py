"""Run names and manifests."""

import dataclasses
import json
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, StateError
from harness.records.files import read_object
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.section import changed
from harness.sweep.manifest import run_name, write_manifest

BASE = from_recipe("quickstart")
ARMS = {f"α={alpha}": ({"alpha": alpha}, changed(BASE, alpha=alpha)) for alpha in (0.1, 1.0)}


def test_a_run_is_named_for_its_settings_and_seed_alone():
    name = run_name(BASE)
    assert name.startswith("EH-Cabinet-v0-elastic-")
    assert name.endswith("-seed0")
    assert run_name(changed(BASE, out=Path("a"))) == name
    assert run_name(changed(BASE, seed=1)) == name.replace("seed0", "seed1")
    others = [{"k0": 11}, {"wrapper": "fixed"}, {"alpha": 0.3}]
    assert len({name, *(run_name(changed(BASE, **o)) for o in others)}) == 4


def test_a_setting_that_is_new_and_left_alone_renames_no_run():
    @dataclasses.dataclass(frozen=True)
    class Later(GRPOConfig):
        invented: int = 3

    values = {f.name: getattr(BASE, f.name) for f in dataclasses.fields(BASE)}
    assert run_name(Later(**values)) == run_name(BASE)
    assert run_name(Later(**values, invented=4)) != run_name(BASE)


def test_a_manifest_keeps_the_seeds_of_earlier_sweeps_and_refuses_other_settings(tmp_path):
    for seeds in ([4, 5], [6]):
        write_manifest(tmp_path, "ema", BASE, ARMS, seeds, 0.8)
    content = read_object(tmp_path / "suites" / "ema.json")
    assert [content[k] for k in ("suite", "env", "model", "threshold")] == ["ema", "EH-Cabinet-v0", "tiny", 0.8]
    name = run_name(changed(BASE, alpha=1.0, seed=5))
    assert content["arms"][1]["settings"] == {"wrapper": "elastic", "k0": 10, "alpha": 1.0}
    assert [run["seed"] for run in content["arms"][1]["runs"]] == [4, 5, 6]
    assert content["arms"][1]["runs"][1]["folder"] == f"../runs/{name}"
    other = changed(BASE, k_max=60)
    with pytest.raises(ConfigError, match=r"k_max.*--out"):
        write_manifest(tmp_path, "ema", other, ARMS, [4], 0.8)


def test_a_damaged_manifest_is_named_and_written_again(tmp_path):
    write_manifest(tmp_path, "ema", BASE, ARMS, [4], 0.8)
    path = tmp_path / "suites" / "ema.json"
    whole = path.read_text()
    path.write_text(whole[:-9])
    with pytest.raises(StateError, match=r"ema\.json"):
        read_object(path)
    write_manifest(tmp_path, "ema", BASE, ARMS, [4], 0.8)
    assert json.loads(path.read_text()) == json.loads(whole)
