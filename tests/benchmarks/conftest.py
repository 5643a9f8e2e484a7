"""Benchmarks are run as scripts, in this process: a new one would take six seconds to import torch and transformers."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run(monkeypatch, capsys):
    def run(name, *flags):
        monkeypatch.syspath_prepend(BENCHMARKS)  # as when Python runs the script by its path
        monkeypatch.setattr("sys.argv", [f"{name}.py", *flags])
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run
