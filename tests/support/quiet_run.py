"""A run without a terminal, and its metrics."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from harness.grpo import train
from harness.run.display import Display
from harness.run.metrics import read_metrics
from harness.run.run_folder import prepare
from harness.settings.grpo import GRPOConfig


def run(config: GRPOConfig, *, resume: bool = False) -> dict[str, Any]:
    """Trains; returns the evaluations."""
    assert config.out is not None
    if not resume:
        prepare(config)
    return train(config, config.out, Display(Console(quiet=True)), resume=resume)


def metrics_of(config: GRPOConfig) -> list[dict[str, Any]]:
    """The run's metrics, less those that a clock makes."""
    assert config.out is not None
    rows = read_metrics(config.out / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def rows_of_run(config: GRPOConfig, *, resume: bool = False) -> list[dict[str, Any]]:
    """Trains; returns the metrics, less those that a clock makes."""
    run(config, resume=resume)
    return metrics_of(config)
