"""What became of a check, from its measurements."""

from __future__ import annotations

import math

from harness.diagnostics.verdict import Measurement, report, verdict


def test_a_promise_that_is_broken_makes_a_path_wrong_and_one_of_speed_slow() -> None:
    right, slow, wrong = (
        Measurement("a", 1, least=1, most=1),
        Measurement("b", 1, least=2, speed=True),
        Measurement("c", math.nan, most=2),
    )
    found = [verdict("x", measurements, 1.0) for measurements in ([right], [right, slow], [right, slow, wrong])]
    assert [result.verdict for result in found] == ["right", "slow", "wrong"]
    assert "not as promised: c nan (<= 2)" in report(found, {"GPU": "none"})
