"""A run's folder is made once, and found again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, StateError
from harness.records.run_folder import OF_THE_MACHINE, forget, prepare, saved_config
from harness.settings.grpo import GRPOConfig
from harness.settings.section import changed, flat


def test_what_is_of_the_machine_are_settings() -> None:
    samplers = ("transformers", "vllm", "vllm-server")
    assert set(OF_THE_MACHINE) <= set().union(*(flat(changed(GRPOConfig(), sampler=name)) for name in samplers))


def test_a_folder_with_a_run_is_refused(quick: GRPOConfig) -> None:
    prepare(quick)
    with pytest.raises(ConfigError, match="--resume"):
        prepare(quick)


STARTS = """
import os, sys
from dataclasses import replace
from harness.records.run_folder import prepare
from harness.settings.grpo import GRPOConfig
config = GRPOConfig.from_json(sys.argv[1])
waits, starts = os.pipe()
for seed in range(20):
    if os.fork() == 0:
        os.close(starts)
        os.read(waits, 1)  # until the parent has closed its end
        try:
            prepare(replace(config, seed=seed))
            said = str(seed)
        except Exception as error:
            said = type(error).__name__
        os.write(1, b" " + said.encode())  # at once, where print would mix the words
        os._exit(0)
os.close(starts)
for _ in range(20):
    os.wait()
"""


def test_of_20_runs_that_begin_at_once_in_a_folder_one_runs_and_the_others_write_nothing(quick: GRPOConfig) -> None:
    """Each looked for the other's settings before it wrote its own."""
    started = subprocess.run([sys.executable, "-c", STARTS, quick.to_json()], stdout=subprocess.PIPE, text=True, check=True)
    words = started.stdout.split()
    assert sorted(words)[1:] == ["ConfigError"] * 19
    assert quick.out is not None
    (seed,) = (word for word in words if word.isdigit())
    assert json.loads((quick.out / "config.json").read_text())["seed"] == int(seed)
    assert {path.name for path in quick.out.iterdir()} == {"config.json", "versions.json", ".lock"}


def test_a_run_that_is_killed_while_it_writes_its_settings_leaves_its_folder_free(
    quick: GRPOConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left an empty file, which could not be resumed from and kept new runs out."""

    def killed(_: GRPOConfig) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GRPOConfig, "to_json", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(quick)
    folder = prepare(quick)
    assert json.loads((folder / "config.json").read_text())["seed"] == quick.seed


def test_the_default_folder_is_numbered_when_it_is_taken(
    quick: GRPOConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [prepare(changed(quick, out=None)).name for _ in range(3)]
    assert names == [f"EH-Cabinet-v0-elastic-seed0{end}" for end in ("", "-2", "-3")]


@pytest.mark.parametrize(
    "text", ['{"k0": 3, "unknown": 1, "warm_start": {}}', '{"k0": ', "[]", '{"k0": 3}', '{"model_type": "qwen2"}']
)
def test_settings_that_can_t_be_read_are_refused(quick: GRPOConfig, text: str) -> None:
    folder = prepare(quick)
    (folder / "config.json").write_text(text)
    with pytest.raises(StateError, match=r"config.json.*restore"):
        saved_config(folder)


def test_a_run_that_never_began_leaves_its_folder_free_and_one_with_a_checkpoint_stays(quick: GRPOConfig) -> None:
    folder = prepare(quick)
    (folder / "checkpoints" / "update-000000").mkdir(parents=True)
    forget(folder)
    with pytest.raises(ConfigError, match="--resume"):
        prepare(quick)
    (folder / "checkpoints" / "update-000000").rmdir()
    (folder / "checkpoints").rmdir()
    forget(folder)
    prepare(quick)
