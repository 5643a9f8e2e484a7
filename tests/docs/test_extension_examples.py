"""The examples of docs/extend keep the contracts that those pages offer to their readers."""

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest

from eh_gym.testing import ControllerContract, ExpertEnvContract
from harness import evaluate_policy

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference.py"))


def example(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the Python blocks of a page up to this class define, as the module that its reader would make of them."""
    module = ModuleType(f"example_{page}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # for pickling
    blocks = REFERENCE["blocks"](ROOT / "docs" / "extend" / f"{page}.md")
    texts = [block.text for block in blocks if block.language == "python"]
    last = next(at for at, text in enumerate(texts) if f"class {name}(" in text)
    exec("".join(texts[: last + 1]), vars(module))
    return module


@pytest.mark.parametrize(("threshold", "successes"), [(0.8, 2), (1.0, 0)])
def test_graded_rewards_add_up_and_the_threshold_decides(
    threshold: float, successes: int, chat_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misspelt(request: dict[str, Any], _: int) -> Any:
        word = request["messages"][1]["content"].split()[1][::-1]
        return {"body": chat_server.completion(request, word[:2] if len(request["messages"]) == 2 else word[:-1])}

    env = example("environment", "BackwardsEnv", monkeypatch).BackwardsEnv
    with chat_server.serve(misspelt) as server:
        result = evaluate_policy(
            "openai", env, base_url=server.url, model="m", rollouts=1, success_threshold=threshold, show=False
        )
    assert (result.reward_mean, result.successes, result.length_mean) == (pytest.approx(0.8), successes, 3)


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
