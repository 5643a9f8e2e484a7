"""The examples of docs/extend keep the contracts that those pages offer to their readers."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import pytest

from eh_gym.testing import ControllerContract, ExpertEnvContract
from harness import evaluate_policy

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference.py"))


def example(page, name, monkeypatch):
    """What the Python blocks of a page up to this class define, as the module that its reader would make of them."""
    module = ModuleType(f"example_{page}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # for pickling
    blocks = REFERENCE["blocks"](ROOT / "docs" / "extend" / f"{page}.md")
    texts = [block.text for block in blocks if block.language == "python"]
    last = next(at for at, text in enumerate(texts) if f"class {name}(" in text)
    exec("".join(texts[: last + 1]), vars(module))
    return module


def test_graded_rewards_add_up_to_the_best_share(monkeypatch):
    env = example("environment", "BackwardsEnv", monkeypatch).BackwardsEnv
    env.expert = lambda self: {3: "du", 2: "duolX", 1: "wrong"}[self._tries]
    result = evaluate_policy("expert", env, split="train", tasks=1, success_threshold=0.8, show=False)
    assert (result.reward_mean, result.successes, result.length_mean) == (pytest.approx(0.8), 1, 3)


class TestSeekingHorizon(ControllerContract):
    @pytest.fixture(autouse=True)
    def _defined(self, monkeypatch):
        self.example = example("controller", "SeekingHorizon", monkeypatch)

    def make(self):
        return self.example.SeekingHorizon()


class TestNumberEnv(ExpertEnvContract):
    @pytest.fixture(autouse=True)
    def _defined(self, monkeypatch):
        monkeypatch.delitem(gym.registry, "Number-v0", raising=False)
        example("environment", "NumberEnv", monkeypatch)

    def make(self):
        return gym.make("Number-v0", split="test")
