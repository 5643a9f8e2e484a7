"""The machine on which the tests run checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.diagnostics.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab("cpu", 0, 0, tmp_path)
