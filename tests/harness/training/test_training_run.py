import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from harness.machine.ranks import Ranks
from harness.records.run_folder import checkpoints_in
from harness.terminal.interrupts import Interrupts
from harness.training import training_run
from harness.training.training_run import TrainingRun


def test_an_environment_that_fails_to_close_keeps_nothing_else_open():
    closed = []

    def part(name):
        return SimpleNamespace(close=lambda: closed.append(name))

    def fail():
        raise RuntimeError("its server is gone")

    run = SimpleNamespace(weights=part("weights"), log=part("log"), batches=SimpleNamespace(close=fail))
    with pytest.raises(RuntimeError, match="its server is gone"):
        TrainingRun.__exit__(run, KeyboardInterrupt, KeyboardInterrupt(), None)
    assert closed == ["weights", "log"]


@pytest.mark.parametrize("held", [True, False])
def test_signals_wait_until_a_checkpoint_is_whole(held, tmp_path, monkeypatch):

    def write(folder, **_):
        assert not (tmp_path / "checkpoints" / "update-000000").exists(), "it is not written again"
        for _ in range(2 if held else 1):
            signal.raise_signal(signal.SIGTERM)
        (folder / "state.json").touch()

    monkeypatch.setattr(training_run, "write_training_state", write)
    some = SimpleNamespace(
        state_dict=dict, policy=SimpleNamespace(model=None), optimizer=None, run=SimpleNamespace(keep_checkpoints=1)
    )
    with Interrupts() as interrupts:
        run = TrainingRun(
            some, tmp_path, Ranks(), 0, some, some, some, some, some, {}, some, None, interrupts=interrupts
        )
        with pytest.raises(KeyboardInterrupt), interrupts.held() if held else nullcontext():
            run.save(0)
        run.save(0)
    assert len(checkpoints_in(tmp_path / "checkpoints")) == 1
