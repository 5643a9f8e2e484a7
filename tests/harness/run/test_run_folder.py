"""A run's folder is made once, and found again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, StateError
from harness.policy.installed import model_folder
from harness.run.run_folder import forget, prepare
from harness.settings.grpo import GRPOConfig


def test_a_folder_with_a_run_is_refused(quick: GRPOConfig) -> None:
    prepare(quick)
    with pytest.raises(ConfigError, match="--resume"):
        prepare(quick)


def test_the_default_folder_is_numbered_when_it_is_taken(
    quick: GRPOConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [prepare(dataclasses.replace(quick, out=None))[1].name for _ in range(3)]
    assert names == [f"EH-Cabinet-v0-elastic-seed0{end}" for end in ("", "-2", "-3")]


def test_resuming_nothing_is_refused(quick: GRPOConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run to resume"):
        prepare(dataclasses.replace(quick, resume=tmp_path / "nowhere"))


def test_a_checkpoint_is_no_run_and_a_run_is_no_model(quick: GRPOConfig) -> None:
    _, folder, _ = prepare(quick)
    checkpoint = folder / "checkpoints" / "update-000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ConfigError, match=f"--resume {folder}$"):
        prepare(dataclasses.replace(quick, resume=checkpoint))
    with pytest.raises(ConfigError, match=f"did you mean {folder / 'model'}?"):
        model_folder(folder)


@pytest.mark.parametrize("text", ['{"k0": 3, "unknown": 1, "warm_start": {}}', '{"k0": ', "[]", '{"k0": 3}'])
def test_settings_that_can_t_be_read_are_refused(quick: GRPOConfig, text: str) -> None:
    _, folder, _ = prepare(quick)
    (folder / "config.json").write_text(text)
    with pytest.raises(StateError, match=r"config.json.*restore"):
        prepare(dataclasses.replace(quick, resume=folder))


def test_the_current_folder_is_refused(quick: GRPOConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="current folder"):
        prepare(dataclasses.replace(quick, out=Path("")))


def test_a_folder_that_can_not_be_made_is_refused(quick: GRPOConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out"):
        prepare(dataclasses.replace(quick, out=tmp_path / "file"))


def test_a_run_that_never_began_leaves_nothing_and_one_with_a_checkpoint_everything(quick: GRPOConfig) -> None:
    _, folder, _ = prepare(quick)
    (folder / "frozen.safetensors").touch()
    (folder / "checkpoints" / "update-000000").mkdir(parents=True)
    forget(folder)
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "versions.json", "frozen.safetensors", "checkpoints")
    }
    (folder / "checkpoints" / "update-000000").rmdir()
    (folder / "checkpoints").rmdir()
    forget(folder)
    assert not folder.exists()
