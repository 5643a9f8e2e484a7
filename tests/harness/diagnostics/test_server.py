"""The server of the checks uses a GPU that this process may use."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from harness.diagnostics.lab import Lab
from harness.diagnostics.server import server


def test_the_server_gets_the_last_of_the_gpus_that_are_visible(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It got the number of the last one among those that are visible, which is another GPU of the machine."""
    given: list[str] = []

    class Process:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            given.append(env["CUDA_VISIBLE_DEVICES"])

        def terminate(self) -> None: ...

        def wait(self, timeout: float) -> None: ...

    nothing: Any = lambda *_: None  # noqa: E731
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr("harness.diagnostics.server._wait_for", nothing)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-7f")
    with server(Lab("cuda", 2, 0, lab.folder), lab.folder, over_nccl=True):
        pass
    assert given == ["GPU-7f"]
