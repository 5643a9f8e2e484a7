"""What Weights & Biases gets, played by a fake; tests/integrations/test_trackers.py has the real package."""

import sys
from unittest.mock import Mock, call

import pytest

from harness.records.metrics import MetricsLog, read_metrics
from harness.settings.grpo import from_recipe
from harness.settings.section import changed


@pytest.fixture
def wandb(monkeypatch):
    package = Mock()
    monkeypatch.setitem(sys.modules, "wandb", package)
    return package


def log(folder, first=0, values=(0.5,)):
    made = MetricsLog(folder, first, ["wandb"], {"seed": 7})
    for update, value in enumerate(values, start=first):
        made.write(update, {"train/loss": value})
    made.close()


def test_a_service_gets_the_settings_and_the_finite_metrics_of_each_update(tmp_path, wandb):
    log(tmp_path, values=[0.5, float("nan"), 0.25])
    assert wandb.init.call_args.kwargs["config"] == {"seed": 7}
    logged = [call({"train/loss": 0.5}, step=0), call({}, step=1), call({"train/loss": 0.25}, step=2)]
    assert wandb.init().log.call_args_list == logged
    wandb.init().finish.assert_called_once_with()
    assert not [*tmp_path.glob("events*")]


def test_a_resumed_run_is_the_same_run_there_and_another_is_not(tmp_path, wandb):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    log(tmp_path / "one")
    log(tmp_path / "one", first=1)
    log(tmp_path / "other")
    first, resumed, other = [begun.kwargs["id"] for begun in wandb.init.call_args_list]
    assert first == resumed != other
    assert {begun.kwargs["resume"] for begun in wandb.init.call_args_list} == {"allow"}


@pytest.mark.parametrize("failing", ["log", "finish"])
def test_a_service_that_fails_is_left_out_and_the_file_has_everything(tmp_path, wandb, failing):
    getattr(wandb.init(), failing).side_effect = ConnectionError("no network")
    with pytest.warns(RuntimeWarning, match="wandb failed .no network") as warned:
        log(tmp_path, values=[3.0, 2.0, 1.0])
    assert len(warned) == 1
    assert [row["train/loss"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [3.0, 2.0, 1.0]


def test_what_is_shown_elsewhere_has_no_folders_of_this_machine(tmp_path):
    config = changed(from_recipe("quickstart"), model=str(tmp_path), out=tmp_path / "run", seed=3)
    assert str(tmp_path) not in str(config.public())
    assert config.public()["seed"] == 3
    assert changed(from_recipe("quickstart"), model="Qwen/Qwen3-4B").public()["model"] == "Qwen/Qwen3-4B"
