"""The examples of docs/extend keep the contracts that those pages offer to their readers."""

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest

from eh_gym.testing import ControllerContract, ExpertEnvContract

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference.py"))


def example(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the Python block of a page with this class defines, as the module that its reader would make of it."""
    module = ModuleType(f"example_{page}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # for pickling
    blocks = REFERENCE["blocks"](ROOT / "docs" / "extend" / f"{page}.md")
    exec(next(block.text for block in blocks if f"class {name}(" in block.text), vars(module))
    return module


class TestSeekingHorizon(ControllerContract):
    @pytest.fixture(autouse=True)
    def _defined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.example = example("controller", "SeekingHorizon", monkeypatch)

    def make(self) -> Any:
        return self.example.SeekingHorizon()


class TestNumberEnv(ExpertEnvContract):
    @pytest.fixture(autouse=True)
    def _defined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(gym.registry, "Number-v0", raising=False)
        example("environment", "NumberEnv", monkeypatch)

    def make(self) -> Any:
        return gym.make("Number-v0", split="test")
