"""Published scores of the benchmarks, with their source, their date, and what differs from a run of `harness.benchmark`.

They come from the named sources, and nothing of them was measured again here. `harness.experiments.paper` has the numbers of the
paper whose method this project implements.
"""

from __future__ import annotations

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
_THIRD_PARTY = "third party's copy; mode (prompt or FC), temperature and bfcl-eval's version are not stated"
_LOOP = "its own react prompt; trained on AppWorld's train split"
_SGCD = "its own prompt; trained on AppWorld's train split; read in the abstract, which does not name the model"

PUBLISHED: tuple[Published, ...] = (
    Published("EH-BFCL", "all", "Kimi K2 Thinking", _MULTI_TURN, 50.6, "basedagi.org", "2026-05-15", _THIRD_PARTY),
    Published("EH-BFCL", "all", "GPT-5.2", _MULTI_TURN, 43.8, "basedagi.org", "2026-05-15", _THIRD_PARTY),
    Published("EH-BFCL", "all", "DeepSeek V3.2", _MULTI_TURN, 37.4, "basedagi.org", "2026-05-15", _THIRD_PARTY),
    Published(
        "EH-BFCL", "all", "Llama 3.3 70B Instruct", _MULTI_TURN, 21.5, "basedagi.org", "2026-05-15", _THIRD_PARTY
    ),
    Published("EH-AppWorld", "test_normal", "LOOP, Qwen2.5 32B", _TGC, 71.3, "arXiv 2502.01600", "2025-02", _LOOP),
    Published("EH-AppWorld", "test_normal", "LOOP, Qwen2.5 32B", _SGC, 53.6, "arXiv 2502.01600", "2025-02", _LOOP),
    Published("EH-AppWorld", "test_challenge", "LOOP, Qwen2.5 32B", _TGC, 45.7, "arXiv 2502.01600", "2025-02", _LOOP),
    Published("EH-AppWorld", "test_challenge", "LOOP, Qwen2.5 32B", _SGC, 26.6, "arXiv 2502.01600", "2025-02", _LOOP),
    Published("EH-AppWorld", "test_normal", "SGCD", _TGC, 45.6, "arXiv 2606.12634", "2026-06-10", _SGCD),
    Published("EH-AppWorld", "test_normal", "GRPO", _TGC, 42.9, "arXiv 2606.12634", "2026-06-10", _SGCD),
    Published("EH-AppWorld", "test_challenge", "SGCD", _TGC, 27.0, "arXiv 2606.12634", "2026-06-10", _SGCD),
    Published("EH-AppWorld", "test_challenge", "GRPO", _TGC, 24.7, "arXiv 2606.12634", "2026-06-10", _SGCD),
)


def published_scores(env_id: str, split: str) -> tuple[Published, ...]:
    """Returns the published scores of an environment's split, the highest first.

    >>> [score.percent for score in published_scores("EH-AppWorld-v0", "test_challenge")]
    [45.7, 27.0, 26.6, 24.7]
    """
    name = env_id.rpartition(":")[2].rsplit("-v", 1)[0]
    found = [score for score in PUBLISHED if (score.env, score.split) == (name, split)]
    return tuple(sorted(found, key=lambda score: -score.percent))
