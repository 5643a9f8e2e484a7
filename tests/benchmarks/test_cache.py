"""The simulated cache: the kept table is what the script prints, and the rule computes little more than it must."""

import re
from collections.abc import Callable
from pathlib import Path

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "cache-simulated.txt"


def test_admitted_episodes_compute_at_most_1_3_times_the_unavoidable(run: Callable[..., str]) -> None:
    printed = run("cache").splitlines()[1:]
    assert [line for line in printed if line not in KEPT.read_text().splitlines()] == []
    rows = [re.split(r" {2,}", line) for line in printed[1:]]
    assert len({(row[0], row[1]) for row in rows}) == 4  # two models, on one GPU and on eight
    assert all(float(row[-2]) <= 1.3 for row in rows)
    assert max(float(row[-3]) for row in rows) > 25
