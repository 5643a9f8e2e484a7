"""What the sampler over the trained module does by itself: rows that change places while episodes come, wait and go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from transformers import Qwen2ForCausalLM

from harness.sampling.slot_cache import SlotCache
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import Sampler, SampleRequest

Made = Callable[[str], tuple[Qwen2ForCausalLM, Sampler]]


@pytest.mark.parametrize("seed", range(4))
def test_episodes_that_come_wait_and_go_in_any_order_keep_their_context(
    made: Made, ask: Callable[..., SampleRequest], forward_logprobs: Callable[..., list[float]], seed: int
) -> None:
    model = made("transformers")[0]
    sampler, rng = TransformersSampler(model), np.random.default_rng(seed)
    waiting: dict[int, list[int]] = {}  # conversations whose environment has the word
    running: set[int] = set()
    begun = finished = 0
    while finished < 60:
        match rng.choice(["begin", "go on", "end", "step", "step", "step"]):
            case "begin" if len(waiting) + len(running) < 9:
                waiting[begun], begun = rng.integers(8, 50, size=rng.integers(1, 6)).tolist(), begun + 1
            case "go on" if waiting:
                session = int(rng.choice(list(waiting)))
                sampler.submit(ask(session, waiting.pop(session), seed=begun * 1000 + finished))
                running.add(session)
            case "end" if waiting or running:
                session = int(rng.choice([*waiting, *running]))
                sampler.end_session(session)
                waiting.pop(session, None)
                running.discard(session)
        for request, sample in sampler.step():
            prompt, session = list(request.prompt_ids), int(request.session)  # type: ignore[call-overload]
            assert sample.logprobs == pytest.approx(forward_logprobs(model, prompt, sample.ids), abs=1e-3)
            finished += 1
            running.remove(session)
            waiting[session] = [*prompt, *sample.ids, *rng.integers(8, 50, size=rng.integers(1, 4)).tolist()]
            if len(waiting[session]) > 100:
                sampler.end_session(session)
                del waiting[session]


def test_no_cache_is_copied_for_those_that_run_while_others_wait(
    made: Made, ask: Callable[..., SampleRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    place = SlotCache.place
    monkeypatch.setattr(
        SlotCache, "place", lambda cache, rows, *rest: (taken.append(rows), place(cache, rows, *rest))[1]
    )
    sampler = TransformersSampler(made("transformers")[0])
    for session in range(8):
        sampler.submit(ask(session, [1, 2, 3], max_tokens=2 if session % 2 else 5, stop_ids=frozenset()))
    while sampler.pending:
        sampler.step()
    for session in (6, 1, 3):  # others wait between them
        sampler.submit(ask(session, [1, 2, 3, 4], stop_ids=frozenset()))
    sampler.step()
    sampler.step()
    assert taken == [slice(0, 8), slice(0, 8), *[slice(0, 4)] * 3, slice(0, 3), slice(0, 3)]
