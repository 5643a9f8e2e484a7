"""The machine on which the checks run, and the short training runs that they start there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import StateError
from harness.run.metrics import read_metrics

__all__ = ["Lab"]

_SETTINGS = (
    "--updates 2 --tasks-per-update 4 --group-size 4 --minibatches 1 --eval-tasks 2 --kl-coef 0.01 --learning-rate 0.003 "
    "--warmup-updates 0"
)


@dataclass(frozen=True)
class Lab:
    """The machine on which the checks run.

    Attributes:
        device: "cuda" or "cpu".
        gpus: The number of GPUs.
        gpu_bytes: The memory of a GPU, in bytes.
        folder: Everything that the checks leave is in this folder.
        timeout_s: The most seconds that a check may take.
    """

    device: str
    gpus: int
    gpu_bytes: int
    folder: Path
    timeout_s: float = 300.0

    @property
    def on_gpu(self) -> bool:
        """Whether the checks run on a GPU."""
        return self.device == "cuda"

    @property
    def ranks(self) -> int:
        """The number of ranks that this machine can have; a CPU can have two."""
        return min(2, self.gpus) if self.on_gpu else 2

    def path(self, name: str) -> Path:
        """The place of what a check or a run leaves."""
        return self.folder / name.replace(" ", "-").replace(",", "")

    def train(self, name: str, *words: str, ranks: int = 1, device: str = "") -> list[dict[str, Any]]:
        """Trains the tiny model for two updates, and returns the rows of its metrics.

        Raises:
            StateError: The run ended with an error.
        """
        run_dir = self.path(name)
        dtype = "bfloat16" if self.on_gpu else "float32"
        flags = [*_SETTINGS.split(), "--dtype", dtype, "--device", device or self.device, *words]
        if "--resume" not in words:
            flags += ["--out", str(run_dir)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        ended = subprocess.run([sys.executable, *launcher, "-m", "harness.grpo", *flags], check=False)
        if ended.returncode:
            raise StateError(
                f"harness.grpo {' '.join(flags)} ended with exit code {ended.returncode}; its output is above"
            )
        return read_metrics(run_dir / "metrics.jsonl")
