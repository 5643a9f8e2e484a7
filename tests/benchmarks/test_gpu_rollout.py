"""The GPU benchmark runs where there is no GPU, on a tiny model: nothing else tests the script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_ways_play_the_same_and_the_shares_add_up() -> None:
    script = [sys.executable, "benchmarks/gpu_rollout.py", "--shape", "tiny", "--sampler", "transformers"]
    settings = ["--episodes", "8", "--latency-ms", "1", "--repeats", "1", "--device", "cpu", "--dtype", "float32"]
    done = subprocess.run(
        [*script, *settings],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = {m[1]: m[2].split() for m in re.finditer(r"1 ms  (lockstep|streaming) +([\d. ]+)\n", done.stdout)}
    assert set(rows) == {"lockstep", "streaming"}
    for _, turns, tokens, _, occupancy, *shares in rows.values():
        assert 24 <= int(turns) <= int(tokens)  # 8 episodes of 3 turns or more
        assert 0 < float(occupancy) <= 1
        assert abs(sum(map(float, shares)) - 1) < 0.02
    assert rows["lockstep"][1:3] == rows["streaming"][1:3]  # turns and tokens
