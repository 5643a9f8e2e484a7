"""What the sampler over the trained module does by itself: rows that change places while episodes come, wait and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_model import ask, forward_logprobs, new_model
from transformers import Qwen2ForCausalLM

from harness.policy.head import float32_head
from harness.sampling import transformers
from harness.sampling.slot_cache import SlotCache
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import Sampler, sample_all

Made = Callable[[str], tuple[Qwen2ForCausalLM, Sampler]]


@pytest.mark.parametrize("seed", range(2))
def test_episodes_that_come_wait_and_go_in_any_order_keep_their_context(made: Made, seed: int) -> None:
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


def test_no_cache_is_copied_for_those_that_run_while_others_wait(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def fed(made: Made, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rows and padded length of every forward pass."""
    shapes: list[tuple[int, int]] = []
    place = SlotCache.place
    monkeypatch.setattr(
        SlotCache,
        "place",
        lambda cache, rows, columns, width: (shapes.append(tuple(columns.shape)), place(cache, rows, columns, width))[
            1
        ],
    )
    return shapes


def test_the_prompt_of_a_group_is_computed_once(
    made: Made,
    fed: list[tuple[int, int]],
) -> None:
    model = made("transformers")[0]
    sampler, prompt = TransformersSampler(model), list(range(8, 48)) * 2
    requests = [ask(s, prompt, seed=s, stop_ids=frozenset()) for s in range(4)]
    group = sample_all(sampler, requests)
    # one prompt; the last token of the others together with the first's first one; the rest, a token later than the first
    assert fed == [(1, 80), *[(4, 1)] * 5, (3, 1)]
    for request, sample in zip(requests, group, strict=True):
        assert sample.logprobs == pytest.approx(forward_logprobs(model, prompt, sample.ids), abs=1e-4)
        assert sample_all(TransformersSampler(model), [request])[0].ids == sample.ids


def test_prompts_share_what_they_begin_with_in_several_steps(
    made: Made,
    fed: list[tuple[int, int]],
) -> None:
    """The rules are common to all tasks, the task to a group; an episode that is under way has both already."""
    model = made("transformers")[0]
    sampler, rules = TransformersSampler(model), list(range(8, 48))
    tasks = [[*rules, *([9 + task] * 35)] for task in range(3)]
    requests = [ask(s, tasks[s // 2], seed=s, stop_ids=frozenset()) for s in range(4)]
    samples = sample_all(sampler, requests)
    assert fed[:2] == [(1, 75), (1, 35)]
    fed.clear()
    late = [ask(9, tasks[1], stop_ids=frozenset()), ask(10, tasks[2], stop_ids=frozenset())]
    samples += sample_all(sampler, late)
    assert fed[0] == (1, 35)
    for request, sample in zip(requests + late, samples, strict=True):
        assert sample.logprobs == pytest.approx(forward_logprobs(model, list(request.prompt_ids), sample.ids), abs=1e-4)


def test_new_weights_are_fed_in_passes_of_bounded_size(made: Made, fed: list[tuple[int, int]]) -> None:
    """Requests that run while the weights change have their whole text to feed again, as new ones have."""
    sampler = TransformersSampler(made("transformers")[0], max_prefill_tokens=50)
    for session in range(4):
        sampler.submit(ask(session, [8 + session] * 20, stop_ids=frozenset()))
    sampler.step()
    sampler.step()
    sampler.weights_changed()
    fed.clear()
    sampler.step()
    assert fed == [(2, 22), (2, 22)]


def test_the_cache_has_no_room_that_no_episode_can_use() -> None:
    cache = SlotCache(100)
    for columns, last in ((10, 10), (12, 21), (60, 60), (61, 100), (100, 100)):
        cache.reserve(1, columns)
        assert cache.scrap_column == last


def test_a_narrow_output_layer_is_widened_once_for_each_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was widened for each token, which took up to half of the time."""
    widened: list[Any] = []

    def counted(model: Any) -> Any:
        widened.append(model)
        return float32_head(model)

    monkeypatch.setattr(transformers, "float32_head", counted)
    model = new_model(tied=False).to(torch.bfloat16)
    sampler = TransformersSampler(model)
    before = sample_all(sampler, [ask(0, [1, 2, 3], stop_ids=frozenset())])
    assert len(widened) == 1
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    sampler.weights_changed()
    sampler.end_session(0)
    after = sample_all(sampler, [ask(0, [1, 2, 3], stop_ids=frozenset())])
    assert len(widened) == 2
    [fresh] = sample_all(TransformersSampler(model), [ask(0, [1, 2, 3], stop_ids=frozenset())])
    assert after[0].logprobs == fresh.logprobs != before[0].logprobs
