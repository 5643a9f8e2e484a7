"""Rehearses docs/multi-gpu.md before a machine is rented: each of its commands on two ranks of a CPU, in some minutes.

    python tools/rehearse.py [FOLDER]    # in a checkout, with the extra `train`; FOLDER is runs/rehearsal by default

The commands are read from the page. In a training, the model becomes a tiny one with random weights, the sampler that
of transformers (stand-ins for servers), and the environment a coin, so that rewards differ and there is a gradient. The
recipe, the number of machines and the paths stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "multi-gpu.md"

COIN = """
from envs.cabinet.env import CabinetEnv

class Coin(CabinetEnv):
    def step(self, action):
        observation, _, _, truncated, info = super().step(action)
        success = len(action) % 2 == 1
        return observation, float(success), True, truncated, {**info, "success": success}
"""
UPDATES = 6
_TINY = (
    f"--model tiny --env coin.py:Coin --split train --eval-split dev --updates {UPDATES} --tasks-per-update 4"
    " --group-size 4 --eval-tasks 2 --eval-rollouts 1 --eval-every 0 --max-action-tokens 6 --rank-timeout-s 120"
).split()
_LEFT_OUT = {
    **dict.fromkeys(("python -m venv", "source", "pip", "tox", "python -m envs install", "export"), "prepares only"),
    "nvidia-smi": "needs a GPU",
    "hf": "downloads the weights",
    "sbatch": "needs Slurm; it starts the command for two machines",
    "sky": "needs SkyPilot; it starts the command for two machines",
    "python tools/rehearse.py": "is this rehearsal",
}
_END = """
Proved here, for the commands that are done: they and their recipes start; two ranks, also of two torchruns as two
machines, find each other, share the episodes, the update and the checkpoints, and hand the weights to what samples;
a run stops, resumes, and writes a model that can be scored.
Not proved without GPUs: NCCL, CUDA and vLLM on several GPUs, memory, speed, the network between machines, and whether
the models learn. docs/training.md#on-a-gpu says what single GPUs have proved."""


def commands(page: str) -> list[list[str]]:
    """The words of each command of a page, from its blocks and its sentences, without the variables before it."""
    found = re.findall(r"^```\n(.*?)^```|`(python -m [^`]+)`", page, re.MULTILINE | re.DOTALL)
    lines = re.split(r"\n|&&", "\n".join(block or code for block, code in found).replace("\\\n", " "))
    return [words for line in lines if (words := shlex.split(re.sub(r"^\s*([A-Z_]+=\S+ )+", "", line), comments=True))]


def rehearsal(words: Sequence[str], *, url: str = "", port: int = 0) -> list[list[str]] | str:
    """The processes that together rehearse a command, or why it is left out.

    Args:
        words: The words of a command of the page.
        url: The addresses of the servers that stand in.
        port: A free port, where the ranks of two machines meet.
    """
    line = " ".join(words)
    words = [word.removeprefix("/") for word in words]  # the disk that machines share is a folder here
    if words[0] == "torchrun":
        at = words.index("-m")
        machines = 2 if "--nnodes" in words[:at] else 1
        meet = f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port}" if machines == 2 else "--standalone"
        flags = [] if "--resume" in words else [*_TINY, *(("--url", url) if url else ("--sampler", "transformers"))]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(2 // machines)]
        return machines * [[*torchrun, *meet.split(), *words[at:], *flags]]
    if line.startswith("python -m harness.evaluate"):
        words += ["--sampler", "transformers", "--tasks", "2", "--max-action-tokens", "6"]
    if line.startswith(("python -m harness", "python -m envs doctor")):
        return [[sys.executable, *words[1:]]]
    for beginning, why in _LEFT_OUT.items():
        if line.startswith(beginning):
            return why
    raise ValueError(f"{line!r} is new on the page; {__file__} must say how it is rehearsed")


@contextlib.contextmanager
def servers(words: Sequence[str], model: Path) -> Iterator[str]:
    """The tests' stand-ins for the vLLM servers of a command; yields their addresses, or nothing if it needs none."""
    if "--url" not in words:
        yield ""
        return
    sys.path.insert(0, str(ROOT / "tests" / "harness"))
    from stand_in_server import ModelStandIn  # type: ignore[import-not-found]
    from transformers import AutoConfig, AutoModelForCausalLM

    like = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))  # the run sends the weights
    made = [ModelStandIn(like) for _ in words[words.index("--url") + 1].split(",")]
    yield ",".join(one.url for one in made)
    for one in made:
        one.close()


def run(processes: Sequence[Sequence[str]], folder: Path, log: Path, stop_at: Path | None) -> bool:
    """Runs processes side by side in a folder, and returns whether all ended well, or stopped when they were told to.

    They are told to when the file `stop_at`, their metrics, has a line. What they print goes into the file `log`.
    """
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    with log.open("w") as file:
        begun = [subprocess.Popen(one, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT) for one in processes]
        try:
            while stop_at and begun[0].poll() is None:
                if stop_at.exists() and stop_at.stat().st_size:
                    begun[0].terminate()
                    begun[0].wait()
                    return len(_lines(stop_at)) < UPDATES
                time.sleep(0.02)
            ends = [one.wait() for one in begun]
            return not any(ends)
        finally:
            for one in begun:
                one.kill()


def _lines(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def left(words: Sequence[str], folder: Path) -> str:
    """What a command has left in the folder, in some words.

    Raises:
        AssertionError: A training was not whole, had no gradient, or its sampler and its trainer differ.
    """
    values = dict(pairwise(words))
    if words[0] == "torchrun":
        of_run = folder / values.get("--out", values.get("--resume", "")).removeprefix("/")
        rows = _lines(of_run / "metrics.jsonl")
        gradient = max(row["train/grad_norm"] or 0 for row in rows)
        nats = max(row["train/logp_difference_mean"] or 0 for row in rows)
        assert len(rows) == UPDATES, f"{len(rows)} updates"
        assert gradient > 0, "no gradient"
        assert nats < 0.02, f"sampler and trainer differ by {nats} nats"
        assert (of_run / "model" / "config.json").exists(), "no model"
        return f": {UPDATES} updates, gradient norm up to {gradient:.2f}, sampler and trainer within {nats:.5f} nats"
    if "harness.evaluate" in words:
        result = json.loads((folder / values["--out"] / "result.json").read_text())["result"]
        return f": {result['tasks']} tasks, success {result['mean_at_k']:.2f}"
    return ""


def rehearse(folder: Path) -> bool:
    """Rehearses every command of the page in a new folder, and returns whether none has failed."""
    (folder / "logs").mkdir(parents=True)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "coin.py").write_text(COIN)
    of_page, failed = commands(PAGE.read_text()), 0
    resumed = {words[-1] for words in of_page if "--resume" in words}
    for number, words in enumerate(of_page):
        print("$", " ".join(words), flush=True)
        log, since = folder / "logs" / f"{number:02}.txt", time.monotonic()
        stops = words[0] == "torchrun" and "--out" in words and words[-1] in resumed
        with servers(words, folder / "runs" / "trial" / "model") as url:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                processes = rehearsal(words, url=url, port=free.getsockname()[1])
            if isinstance(processes, str):
                print(f"  left out: {processes}")
                continue
            ended = run(processes, folder, log, folder / words[-1] / "metrics.jsonl" if stops else None)
        seconds = f"{time.monotonic() - since:.0f} s"
        lines = log.read_text().splitlines()
        if missing := [line for line in lines if line.startswith("error:") and "envs install" in line]:
            print(f"  left out: {missing[0].removeprefix('error: ')}")
            continue
        try:
            assert ended, "it ended with an error" if not stops else "it did not stop"
            print(f"  stopped after an update, {seconds}" if stops else f"  done in {seconds}{left(words, folder)}")
        except (AssertionError, OSError) as error:
            failed += 1
            print(f"  FAILED: {error}; see {log}")
    print(f"\n{failed} commands failed: mend them before you rent a machine." if failed else _END)
    return not failed


if __name__ == "__main__":
    chosen = Path(sys.argv[1] if sys.argv[1:] else "runs/rehearsal").resolve()
    if chosen.exists():
        sys.exit(f"error: {chosen} exists; name another folder")
    sys.exit(not rehearse(chosen))
