"""The probes on a CPU, and that they see what is broken."""

from __future__ import annotations

from typing import Any

import pytest

from harness.diagnostics import probes
from harness.diagnostics.lab import Lab
from harness.policy import attention
from harness.policy.policy import Policy


def test_attention_that_loses_the_shared_prompt_is_seen(lab: Lab) -> None:
    assert all(measurement.kept for measurement in probes.packed_attention(lab))
    right = attention.packed_attention

    def wrong(*tensors: Any, segments: Any = None, **rest: Any) -> Any:
        if segments is not None:
            segments = attention.Segments(segments.lengths, [-1] * len(segments.parents), segments.device)
        return right(*tensors, segments=segments, **rest)

    attention.AttentionInterface.register(attention.PACKED, wrong)
    try:
        assert not all(measurement.kept for measurement in probes.packed_attention(lab))
    finally:
        attention.AttentionInterface.register(attention.PACKED, right)


def test_the_update_is_measured(lab: Lab) -> None:
    pytest.importorskip("peft")
    found = {measurement.what: measurement for measurement in probes.policy_update(lab)}
    assert found["tokens/s"].value > 0
    assert all(measurement.kept for measurement in found.values())
    assert "speed compiled / eager" not in found


def test_the_update_is_compiled_where_a_run_would_compile_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU without a C compiler the check ended with an error, and a run there does without."""
    pytest.importorskip("peft")
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(probes, "compiles", lambda *how: not asked.append(how))
    monkeypatch.setattr(Policy, "compile_layers", lambda self: None)
    assert "speed compiled / eager" in {measurement.what for measurement in probes.policy_update(lab)}
    assert asked == [("auto", "cpu", "vllm")]
