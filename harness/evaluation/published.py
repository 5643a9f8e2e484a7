"""Published scores of the benchmarks, with their source, their date, and what differs from a run of `harness.benchmark`.

They were read in the sources that are named, and nothing of them was measured again here. `harness.experiments.paper` has the
numbers of the paper whose method this project implements.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

__all__ = ["PUBLISHED", "Published", "published_scores"]


@dataclass(frozen=True)
class Published:
    """One published score.

    Attributes:
        env: The environment's name, without its version.
        split: The split, as this project names it.
        who: The model or the method.
        measure: What the score is.
        percent: The score.
        source: Where it was read.
        date: When it was published there, as year and month, or year, month and day.
        differs: What to know before it is compared with a run of `harness.benchmark`.
    """

    env: str
    split: str
    who: str
    measure: str
    percent: float
    source: str
    date: str
    differs: str

    @property
    def remark(self) -> str:
        """The source, the date, and what differs."""
        return f"{self.source}, {self.date}: {self.differs}"


_MULTI_TURN = "mean of the categories"
_TGC, _SGC = "tasks (TGC)", "scenarios (SGC)"

# ShishirPatil/gorilla, branch gh-pages, data_multi_turn.csv. The name says the mode: FC (action_format="native", or "hermes" for
# Qwen) or Prompt ("python"). bfcl-eval's default temperature is 0.001.
_BFCL_SOURCE, _BFCL_DATE = "BFCL's leaderboard", "2025-12-16"
_BFCL_DIFFERS = "bfcl-eval 2025.12.17, k = 1, upstream's own handler for the model"
_BFCL = (
    ("Claude-Opus-4-5-20251101 (FC)", 68.38),
    ("GLM-4.6 (FC thinking)", 68.00),
    ("Moonshotai-Kimi-K2-Instruct (FC)", 50.63),
    ("Qwen3-32B (FC)", 47.87),
    ("GPT-5.2-2025-12-11 (Prompt)", 43.75),
    ("Qwen3-8B (FC)", 41.75),
    ("Qwen3-8B (Prompt)", 33.38),
    ("Qwen3-4B-Instruct-2507 (FC)", 22.12),
    ("Llama-3.3-70B-Instruct (FC)", 21.50),
    ("Qwen3-1.7B (FC)", 11.00),
    ("Qwen3-0.6B (FC)", 3.62),
    ("Qwen3-0.6B (Prompt)", 1.38),
)

# StonyBrookNLP/appworld-leaderboard, experiments/outputs/_leaderboard.json at commit 8da928a. The date is that of the entry.
_APPWORLD_SOURCE = "AppWorld's leaderboard"
_APPWORLD_DIFFERS = "its own prompt and limits"
_APPWORLD = (  # who, date, TGC and SGC of test_normal, TGC and SGC of test_challenge
    ("AgentRL, Qwen3-14B", "2026-02-15", 86.9, 80.4, 67.6, 50.4),
    ("IBM CUGA, GPT-4.1", "2025-07-12", 73.2, 62.5, 57.6, 48.2),
    ("LOOP, Qwen2.5-32B", "2025-04-09", 72.6, 53.6, 47.2, 28.8),
    ("ReAct, GPT-4o", "2024-07-26", 48.8, 32.1, 30.2, 13.0),
    ("ReAct, LLaMA3-70B", "2024-07-26", 20.8, 8.9, 3.4, 0.0),
)
_SGCD = "its own prompt; trained on AppWorld's train split; read in the abstract, which does not name the model"

PUBLISHED: tuple[Published, ...] = (
    *(
        Published("EH-BFCL", "all", who, _MULTI_TURN, percent, _BFCL_SOURCE, _BFCL_DATE, _BFCL_DIFFERS)
        for who, percent in _BFCL
    ),
    *(
        Published("EH-AppWorld", split, who, measure, percent, _APPWORLD_SOURCE, date, _APPWORLD_DIFFERS)
        for who, date, *four in _APPWORLD
        for (split, measure), percent in zip(
            itertools.product(("test_normal", "test_challenge"), (_TGC, _SGC)), four, strict=True
        )
    ),
    Published("EH-AppWorld", "test_normal", "SGCD", _TGC, 45.6, "arXiv 2606.12634", "2026-06-10", _SGCD),
    Published("EH-AppWorld", "test_normal", "GRPO", _TGC, 42.9, "arXiv 2606.12634", "2026-06-10", _SGCD),
    Published("EH-AppWorld", "test_challenge", "SGCD", _TGC, 27.0, "arXiv 2606.12634", "2026-06-10", _SGCD),
    Published("EH-AppWorld", "test_challenge", "GRPO", _TGC, 24.7, "arXiv 2606.12634", "2026-06-10", _SGCD),
)


def published_scores(env_id: str, split: str) -> tuple[Published, ...]:
    """Returns the published scores of an environment's split, the highest first.

    >>> [score.percent for score in published_scores("EH-AppWorld-v0", "test_challenge")][:4]
    [67.6, 57.6, 50.4, 48.2]
    """
    name = env_id.rpartition(":")[2].rsplit("-v", 1)[0]
    found = [score for score in PUBLISHED if (score.env, score.split) == (name, split)]
    return tuple(sorted(found, key=lambda score: -score.percent))
