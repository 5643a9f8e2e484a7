"""What a rank is counted to hold, on a small model: no more than the plan says, and not much less."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_plan_covers_what_a_rank_holds() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/rank_memory.py", "--smoke"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"(bfloat16|float32) x 2 +([\d.]+) +([\d.]+) ", done.stdout)
    assert [dtype for dtype, _, _ in rows] == ["bfloat16", "float32"]
    for _, planned, counted in rows:
        assert 0.7 * float(planned) < float(counted) < 1.05 * float(planned)
