"""Tries every path of the harness once on this machine, and judges what was measured by what the project promises.

Each check has a process of its own, so that a crash, a hang or an engine that keeps its memory ends one check and no other. Most
checks are short runs of `harness.grpo` with the tiny model, judged by the metrics that they log. `harness.diagnostics.probes`
has those with the shape of a real model. docs/vllm.md explains the table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eh_gym.errors import StateError
from harness.diagnostics.lab import Lab
from harness.diagnostics.measurement import Measurement
from harness.diagnostics.process_group import end_group
from harness.run.versions import package_versions

__all__ = ["CHECKS", "Check", "Result", "about", "carry_out", "judged", "report", "row", "verdict"]

_LOG_LINES = 60  # of a check that failed, in the report


@dataclass(frozen=True)
class Result:
    """What became of a check.

    Attributes:
        name: The name of the check.
        verdict: "right", "slow", "wrong", or "left out".
        seconds: How long it took.
        measurements: What it measured.
        why: The end of its log if it is wrong; the reason if it was left out.
    """

    name: str
    verdict: str
    seconds: float = 0.0
    measurements: tuple[Measurement, ...] = ()
    why: str = ""


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
        for name in (row.keys() | other.keys()) - {n for n in row if n.startswith("time/")}:
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


def _served(name: str, *words: str, server_flags: Sequence[str] = ()) -> Check:
    """The check of a run that samples with a server. It takes the weights over NCCL if it has a GPU of its own."""

    def measure(lab: Lab) -> list[Measurement]:
        over_nccl = lab.on_gpu and lab.gpus > 1
        model = lab.path("transformers") / "model"  # of the check of this name, if it was carried out
        if not model.exists():
            lab.train("transformers")
        with server(lab, model, over_nccl, server_flags) as url:
            flags = ("--sampler", "vllm-server", "--url", url, *words)
            return judged(lab.train(name, *flags, device="" if over_nccl else "cpu"), lab)

    return Check(name, measure, vllm=True)


@contextlib.contextmanager
def server(lab: Lab, model: Path, over_nccl: bool, flags: Sequence[str]) -> Iterator[str]:
    """A vLLM server with this model's shape, as docs/vllm.md starts it; yields its address."""
    with socket.socket() as kept:  # bound and not listening, it keeps the port for the server
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        transfer = json.dumps({"backend": "nccl" if over_nccl else "file"})
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--port",
            str(port),
        ]
        command += ["--host", "127.0.0.1", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        command += ["--enable-scale-out", "--weight-transfer-config", transfer, *flags]
        command += ["--worker-extension-cls", "harness.sampling.vllm_worker.PolicyWeights"]
        settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        if lab.on_gpu:
            command += ["--gpu-memory-utilization", "0.3"]
            settings["CUDA_VISIBLE_DEVICES"] = str(lab.gpus - 1)
        else:
            command += [
                "--dtype",
                "float32",
                "--enforce-eager",
                "--block-size",
                "32",
                "--kv-cache-memory-bytes",
                "67108864",
            ]
            command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"]
            settings |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        process = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            _wait_for(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    while True:  # the check's own time limit ends it
        if process.poll() is not None:
            raise StateError(f"the server ended with exit code {process.returncode}; its output is above")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.5)


def _probe(name: str) -> Callable[[Lab], list[Measurement]]:
    """A check of `harness.diagnostics.probes`, which loads torch."""

    def measure(lab: Lab) -> list[Measurement]:
        from harness.diagnostics import probes

        found: list[Measurement] = getattr(probes, name)(lab)
        return found

    return measure


_VLLM = ("--sampler", "vllm")
_APART = ("--lora-rank", "4", "--lora-handover", "adapters")

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("packed attention", _probe("packed_attention")),
        _run("transformers"),
        _run("vllm", *_VLLM, vllm=True),
        Check("policy update", _probe("policy_update")),
        Check("engine", _probe("engine"), vllm=True),
        _run("vllm, adapters merged", *_VLLM, "--lora-rank", "4", vllm=True),
        _run("vllm, adapters apart", *_VLLM, *_APART, vllm=True),
        Check("checkpoint and resume", _resumed),
        Check("two ranks", _ranks_agree, ranks=2),
        _run("two ranks, an engine each", *_VLLM, vllm=True, ranks=2),
        _served("vllm-server"),
        _served("vllm-server, adapters apart", *_APART, server_flags=("--enable-lora", "--max-lora-rank", "8")),
        _run("transformers, adapters", "--lora-rank", "4"),
        _run("transformers, sampling while training", "--max-staleness", "1", lag=1),
    )
}
"""Every check by name. What matters most comes first, in case that the time runs out."""


def carry_out(check: Check, lab: Lab) -> Result:
    """Runs a check in a process of its own, and kills all that it started if it takes too long."""
    if lacking := check.lacks(lab):
        return Result(check.name, "left out", why=lacking)
    began, path = time.monotonic(), lab.path(check.name)
    log, answer = path.with_suffix(".log"), path.with_suffix(".json")
    process = multiprocessing.get_context("spawn").Process(target=_alone, args=(check.name, lab, log, answer))
    process.start()
    try:
        process.join(lab.timeout_s)
        late = process.is_alive()
    finally:
        end_group(process)  # servers and ranks that it left behind too
    seconds = time.monotonic() - began
    if late or not answer.exists():
        end = f"did not end within {lab.timeout_s:g} s" if late else f"ended with exit code {process.exitcode}"
        tail = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
        return Result(check.name, "wrong", seconds, why="\n".join([*tail, f"the check {end}"]))
    return verdict(check.name, [Measurement(**one) for one in json.loads(answer.read_text())], seconds)


def verdict(name: str, measurements: Sequence[Measurement], seconds: float) -> Result:
    """Judges a check by its measurements."""
    broken = [one for one in measurements if not one.kept]
    word = "right" if not broken else "slow" if all(one.speed for one in broken) else "wrong"
    return Result(name, word, seconds, tuple(measurements), "\n".join(f"not as promised: {one}" for one in broken))


def _alone(name: str, lab: Lab, log: Path, answer: Path) -> None:
    """Runs a check in this process. All that it and its children print goes into the log."""
    os.setsid()
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        measurements = CHECKS[name].measure(lab)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    part = answer.with_suffix(".part")
    part.write_text(json.dumps([dataclasses.asdict(one) for one in measurements]))
    part.rename(answer)


def report(results: Sequence[Result], about: Mapping[str, str]) -> str:
    """The text to attach to a report: the machine, the table, and why a check is not right."""
    lines = [*(f"{name}: {value}" for name, value in about.items()), ""]
    lines += [row(result) for result in results]
    for result in results:
        if result.verdict in ("wrong", "slow"):
            lines += ["", f"--- {result.name}: {result.verdict}", result.why]
    return "\n".join(lines) + "\n"


def row(result: Result) -> str:
    """One line of the table."""
    said = "; ".join(map(str, result.measurements)) or result.why.splitlines()[-1]
    return f"{result.name:38} {result.verdict:8} {result.seconds:5.0f} s  {said}"


def about(device: str) -> dict[str, str]:
    """The machine and the packages, for the report."""
    import torch

    gpus = torch.cuda.device_count() if device == "cuda" else 0
    name = torch.cuda.get_device_name() if gpus else "none"
    return {"GPUs": str(gpus), "GPU": name, "CUDA": str(torch.version.cuda), **package_versions()}
