"""What Weights & Biases gets, played by a fake; tests/integrations/test_trackers.py has the real package."""

import sys
from types import SimpleNamespace

import pytest

from harness.records.metrics import MetricsLog, read_metrics
from harness.settings.grpo import from_recipe
from harness.settings.section import changed


class Service:
    """A package with an `init` that keeps what it gets."""

    def __init__(self, failing=()):
        self.begun, self.logged, self.finished, self.failing = [], [], 0, failing

    def init(self, **given):
        if "init" in self.failing:
            raise RuntimeError("no login")
        self.begun.append(given)
        return SimpleNamespace(log=self.log, finish=self.finish)

    def log(self, metrics, step):
        if "log" in self.failing:
            raise ConnectionError("no network")
        self.logged.append((step, metrics))

    def finish(self):
        if "finish" in self.failing:
            raise ConnectionError("no network")
        self.finished += 1

    Settings = SimpleNamespace


@pytest.fixture
def put(monkeypatch):
    return lambda service: monkeypatch.setitem(sys.modules, "wandb", service) or service


def log(folder, first=0, values=(0.5,)):
    made = MetricsLog(folder, first, ["wandb"], {"seed": 7})
    for update, value in enumerate(values, start=first):
        made.write(update, {"train/loss": value})
    made.close()


def test_a_service_gets_the_settings_and_the_finite_metrics_of_each_update(tmp_path, put):
    service = put(Service())
    log(tmp_path, values=[0.5, float("nan"), 0.25])
    [begun] = service.begun
    assert begun["config"] == {"seed": 7}
    assert service.logged == [(0, {"train/loss": 0.5}), (1, {}), (2, {"train/loss": 0.25})]
    assert service.finished == 1
    assert not (tmp_path / "tensorboard").exists()


def test_a_resumed_run_is_the_same_run_there_and_another_is_not(tmp_path, put):
    service = put(Service())
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    log(tmp_path / "one")
    log(tmp_path / "one", first=1)
    log(tmp_path / "other")
    first, resumed, other = [begun["id"] for begun in service.begun]
    assert first == resumed != other
    assert {begun["resume"] for begun in service.begun} == {"allow"}


@pytest.mark.parametrize("failing", ["log", "finish"])
def test_a_service_that_fails_is_left_out_and_the_file_has_everything(tmp_path, put, failing):
    put(Service([failing]))
    with pytest.warns(RuntimeWarning, match="wandb failed .no network") as warned:
        log(tmp_path, values=[3.0, 2.0, 1.0])
    assert len(warned) == 1
    assert [row["train/loss"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [3.0, 2.0, 1.0]


def test_what_is_shown_elsewhere_has_no_folders_of_this_machine(tmp_path):
    config = changed(from_recipe("quickstart"), model=str(tmp_path), out=tmp_path / "run", seed=3)
    assert str(tmp_path) not in str(config.public())
    assert config.public()["seed"] == 3
    assert changed(from_recipe("quickstart"), model="Qwen/Qwen3-4B").public()["model"] == "Qwen/Qwen3-4B"
