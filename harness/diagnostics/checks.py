"""The checks: each tries one path of the harness on this machine, and measures what the project promises of it.

Most checks are short runs of `harness.grpo` with the tiny model, judged by the metrics that they log. Those with the shape of a
real model are in `harness.diagnostics.probes`. docs/vllm.md explains the table.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from eh_gym.errors import StateError
from harness.diagnostics.lab import Lab
from harness.diagnostics.server import server
from harness.diagnostics.verdict import Measurement

__all__ = ["CHECKS", "Check", "judged", "largest_difference"]


@dataclass(frozen=True)
class Check:
    """One path.

    Attributes:
        name: The name of the path.
        measure: Takes the path, and returns what it measured.
        vllm: Whether it needs vLLM.
        ranks: The number of GPUs that it needs; on a CPU, the number of processes.
    """

    name: str
    measure: Callable[[Lab], list[Measurement]]
    vllm: bool = False
    ranks: int = 1

    def lacks(self, lab: Lab) -> str:
        """Why the check cannot run here; empty if it can."""
        if self.vllm and find_spec("vllm") is None:
            return "vLLM is not installed"
        return f"needs {self.ranks} GPUs" if lab.ranks < self.ranks else ""


def judged(rows: Sequence[Mapping[str, Any]], lab: Lab, *, lag: int = 0) -> list[Measurement]:
    """What a run's metrics say about its path.

    The KL term keeps every episode in the loss, so each update compares the sampler's log-probabilities with the trainer's. The
    learning rate moves them by far more than the bound. So a hand-over that lost the weights is seen in the second update, as
    it is seen where the sampler is behind on purpose.
    """
    differences = [
        math.inf if row["train/logp_difference_mean"] is None else row["train/logp_difference_mean"] for row in rows
    ]
    bound = 0.02 if lab.on_gpu else 1e-3
    found = [
        Measurement("updates", len(rows), least=2),
        Measurement("trainer - sampler, nats", max(differences[:1] if lag else differences), most=bound),
        Measurement("failed environments", sum(row["rollout/environment_errors"] for row in rows), most=0),
        Measurement("updates behind", rows[-1]["rollout/policy_lag"], least=lag, most=lag),
        Measurement("skipped steps", sum(row["train/skipped_steps"] for row in rows), most=0),
    ]
    if lag:
        found.append(Measurement("trainer - sampler behind, nats", differences[-1], least=bound))
    if "rollout/cache_preemptions" in rows[-1]:
        found.append(
            Measurement("preemptions", sum(row["rollout/cache_preemptions"] for row in rows), most=0, speed=True)
        )
    return found


def _run(name: str, *words: str, lag: int = 0, ranks: int = 1, vllm: bool = False) -> Check:
    """The check of a training run."""
    return Check(name, lambda lab: judged(lab.train(name, *words, ranks=ranks), lab, lag=lag), vllm, ranks)


def _resumed(lab: Lab) -> list[Measurement]:
    """A run that goes on from its last checkpoint but one repeats the last update."""
    name = "checkpoint and resume"
    whole = lab.train(name, "--checkpoint-every", "1")
    run_dir = lab.path(name)
    shutil.rmtree(run_dir / "checkpoints" / "update-000002")
    again = lab.train(name, "--resume", str(run_dir))
    # On a GPU sums are added in an order that changes from run to run.
    return [
        Measurement("largest relative difference", largest_difference(whole, again), most=0.05 if lab.on_gpu else 0.0)
    ]


def largest_difference(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> float:
    """The largest relative difference between the metrics of two runs, without the clock's; inf if one lacks a number."""
    found = [0.0 if len(rows) == len(others) else math.inf]
    for row, other in zip(rows, others, strict=False):
        for name in {name for name in row.keys() | other.keys() if not name.startswith("time/")}:
            a, b = row.get(name), other.get(name)
            if a != b:
                found.append(math.inf if a is None or b is None else abs(a - b) / max(abs(a), abs(b)))
    return max(found)


def _ranks_agree(lab: Lab) -> list[Measurement]:
    """Two ranks compute the first update of one process. What follows differs by rounding that the optimizer amplifies."""
    one, two = lab.train("one rank"), lab.train("two ranks", ranks=2)
    norms = [max(rows[0]["train/grad_norm"], 1e-12) for rows in (one, two)]
    off = abs(norms[0] - norms[1]) / max(norms)
    return [
        *judged(two, lab),
        Measurement("gradient norm, relative difference", off, most=0.05 if lab.on_gpu else 5e-3),
    ]


def _served(lab: Lab) -> list[Measurement]:
    """A run that samples with a server. It takes the weights over NCCL if it has a GPU of its own."""
    over_nccl = lab.on_gpu and lab.gpus > 1
    model = lab.path("transformers") / "model"  # of the check of this name, if it was carried out
    if not model.exists():
        lab.train("transformers")
    with server(lab, model, over_nccl) as url:
        flags = ("--sampler", "vllm-server", "--url", url)
        return judged(lab.train("vllm-server", *flags, device="" if over_nccl else "cpu"), lab)


def _sharded(lab: Lab) -> list[Measurement]:
    """An update of a real model's shape, sharded over the GPUs that there are; see `harness.diagnostics.probes`."""
    folder = lab.path("sharded update")
    ranks = min(lab.gpus, 8) if lab.on_gpu else 2
    words = ["--standalone", "--nproc-per-node", str(ranks), "-m", "harness.diagnostics.sharded"]
    place = [lab.device, str(lab.gpus), str(lab.gpu_bytes), str(folder)]
    ended = subprocess.run([sys.executable, "-m", "torch.distributed.run", *words, *place], check=False)
    if ended.returncode:
        raise StateError(f"torchrun {' '.join(words)} ended with exit code {ended.returncode}; its output is above")
    return [Measurement(**one) for one in json.loads((folder / "measured.json").read_text())]


def _probe(name: str) -> Callable[[Lab], list[Measurement]]:
    """A check of `harness.diagnostics.probes`, which loads torch."""

    def measure(lab: Lab) -> list[Measurement]:
        from harness.diagnostics import probes

        found: list[Measurement] = getattr(probes, name)(lab)
        return found

    return measure


_VLLM = ("--sampler", "vllm")

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("packed attention", _probe("packed_attention")),
        _run("transformers"),
        _run("vllm", *_VLLM, vllm=True),
        Check("policy update", _probe("policy_update")),
        Check("engine", _probe("engine"), vllm=True),
        Check("engine, adapters merged", _probe("merged_engine"), vllm=True),
        Check("evaluation, small cache", _probe("small_cache"), vllm=True),
        Check("sharded update", _sharded, ranks=2),
        _run("vllm, adapters", *_VLLM, "--lora-rank", "4", vllm=True),
        Check("checkpoint and resume", _resumed),
        Check("two ranks", _ranks_agree, ranks=2),
        _run("two ranks, an engine each", *_VLLM, vllm=True, ranks=2),
        Check("vllm-server", _served, vllm=True),
        _run("transformers, adapters", "--lora-rank", "4"),
        _run("transformers, sampling while training", "--max-staleness", "1", lag=1),
    )
}
"""Every check by name. What matters most comes first, in case that the time runs out."""
