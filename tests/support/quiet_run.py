"""A run without a terminal, and its metrics; one that is killed and goes on."""

import contextlib
import io
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from harness.records.metrics import read_metrics
from harness.records.run_folder import prepare
from harness.terminal.display import Display
from harness.training.loop import train_loop


def run(config, *, resume=False):
    if not resume:
        prepare(config)
    return train_loop(config, config.out, Display(Console(quiet=True)), resume=resume)


def metrics_of(config):
    return untimed(read_metrics(config.out / "metrics.jsonl"))


def untimed(rows):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def rows_of_run(config, *, resume=False):
    run(config, resume=resume)
    return metrics_of(config)


def kill_and_resume(config, kills, environment):
    """Trains in processes of their own: SIGKILL each time that so many updates are logged, then to the end.

    Those that are killed are forked, since a new one would import torch for as long as it trains. The last one is new.
    """
    prepare(config)
    log, resume = config.out / "metrics.jsonl", ["--resume", str(config.out)]
    for updates in kills:
        process = multiprocessing.get_context("fork").Process(target=_held_run, args=(resume, environment))
        process.start()
        deadline = time.monotonic() + 600
        while not log.exists() or len(log.read_text().splitlines()) < updates:
            assert process.is_alive(), "the run failed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.join()
        assert len(metrics_of(config)) < config.updates
    whole_run = [sys.executable, "-m", "harness.grpo", *resume]
    ended = subprocess.run(whole_run, env=environment, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stderr) == (0, "")  # no warning of another package reaches the screen


def _held_run(words, environment):
    os.environ.update(environment)
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(Path(__file__).parents[1] / "harness" / "held_run.py"))
