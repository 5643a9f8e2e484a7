"""A run closes what it has opened."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.training.training_run import Run


def test_an_environment_that_fails_to_close_keeps_nothing_else_open() -> None:
    """A log that stays open keeps the folder from another process that could resume the run."""
    closed: list[str] = []

    def part(name: str) -> Any:
        return SimpleNamespace(close=lambda: closed.append(name))

    def fail() -> None:
        raise RuntimeError("its server is gone")

    parts = {name: part(name) for name in ("weights", "log")}
    others: dict[str, Any] = dict.fromkeys(
        ("config", "folder", "ranks", "next_update", "controller", "learner", "held_out", "evaluations", "clock")
    )
    run = Run(**others, **parts, batches=SimpleNamespace(close=fail))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="its server is gone"):
        run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert closed == ["weights", "log"]
