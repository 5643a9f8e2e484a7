"""What the sampler over the trained module does by itself: rows that change places while episodes come, wait and go."""

import numpy as np
import pytest
import torch
from small_model import ask, forward_logprobs, new_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.sampling.slot_cache import SlotCache
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import sample_all

WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}


@pytest.mark.parametrize(("seed", "windows"), [(0, {}), (1, WINDOWS)])
def test_episodes_that_come_wait_and_go_in_any_order_keep_their_context(seed, windows):
    small = new_model()
    model = Qwen2ForCausalLM(Qwen2Config(**{**small.config.to_dict(), **windows})).eval()
    model.load_state_dict(small.state_dict())
    sampler, rng = TransformersSampler(model), np.random.default_rng(seed)
    waiting = {}  # conversations whose environment has the word
    running = set()
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
            prompt, session = list(request.prompt_ids), int(request.session)
            assert sample.logprobs == pytest.approx(forward_logprobs(model, prompt, sample.ids), abs=1e-3)
            finished += 1
            running.remove(session)
            waiting[session] = [*prompt, *sample.ids, *rng.integers(8, 50, size=rng.integers(1, 4)).tolist()]
            if len(waiting[session]) > 100:
                sampler.end_session(session)
                del waiting[session]


@pytest.fixture
def fed(made, monkeypatch):
    shapes = []
    place = SlotCache.place
    monkeypatch.setattr(
        SlotCache,
        "place",
        lambda cache, rows, columns, width: (shapes.append(tuple(columns.shape)), place(cache, rows, columns, width))[
            1
        ],
    )
    return shapes


def test_the_prompt_of_a_group_is_computed_once(made, fed):
    sampler, prompt = TransformersSampler(made("transformers")[0]), list(range(8, 48)) * 2
    requests = [ask(s, prompt, seed=s, stop_ids=frozenset()) for s in range(4)]
    sample_all(sampler, requests)
    # one prompt; the last token of the others together with the first's first one; the rest, a token later than the
    # first
    assert fed == [(1, 80), *[(4, 1)] * 5, (3, 1)]


def test_no_pass_takes_cudnn_s_attention_which_makes_a_plan_for_each_shape(made):
    model = made("transformers")[0]
    allowed = []
    cuda = torch.backends.cuda
    model.register_forward_pre_hook(lambda *_: allowed.append((cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled())))
    before = cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()
    assert before == (True, True)
    sample_all(TransformersSampler(model), [ask(0, list(range(8, 48)), seed=0)])
    assert set(allowed) == {(False, True)}  # of prompts and of single tokens
    assert (cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()) == before, "the trainer may take it"
