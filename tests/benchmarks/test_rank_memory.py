"""What a rank is counted to hold, on a small model: no more than the plan says, and not much less."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from transformers import Qwen2Config

ROOT = Path(__file__).parents[2]


def test_the_plan_covers_what_a_rank_holds(tmp_path: Path) -> None:
    Qwen2Config(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    ).save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "benchmarks/rank_memory.py", "--models", str(tmp_path), "--tokens", "1024", "--ranks", "2"],
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
