"""The GPU benchmark runs where there is no GPU, on a tiny model: nothing else tests the script."""

from __future__ import annotations

import re
from collections.abc import Callable


def test_both_ways_play_the_same_and_the_shares_add_up(run: Callable[..., str]) -> None:
    out = run("gpu_rollout", "--smoke")
    rows = {m[1]: m[2].split() for m in re.finditer(r"1 ms  (lockstep|streaming) +([\d. ]+)\n", out)}
    assert set(rows) == {"lockstep", "streaming"}
    for _, turns, tokens, _, occupancy, *shares in rows.values():
        assert 24 <= int(turns) <= int(tokens)  # 8 episodes of 3 turns or more
        assert 0 < float(occupancy) <= 1
        assert abs(sum(map(float, shares)) - 1) < 0.02
    assert rows["lockstep"][1:3] == rows["streaming"][1:3]  # turns and tokens
