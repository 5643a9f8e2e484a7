"""One conformance suite over every sampler: the policy's own module, vLLM in this process, a vLLM server."""

import copy

import pytest
import torch
from small_model import STOP, VOCAB, ask, forward_logprobs, wait

from eh_gym.errors import ConfigError
from harness.types.sampler import sample_all

KINDS = ["transformers", "transformers-small-prefill", "transformers-untied", "vllm", "vllm-untied", "vllm-server"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind, made):
    model, sampler = made(kind)
    before = copy.deepcopy(model.state_dict())
    yield model
    for session in range(4000):
        sampler.end_session(session)
    model.load_state_dict(before)
    sampler.weights_changed()


@pytest.fixture
def sampler(kind, model, made):
    return made(kind)[1]


def change(model):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    model.train()
    ids = torch.arange(12)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    model.zero_grad()


def test_logprobs_equal_a_plain_forward_pass_over_several_turns(sampler, model):
    prompts = {s: [1 + s, 2, 3] + [4] * s for s in range(5)}  # of unequal length
    for turn in range(4):
        requests = [ask(s, p, seed=100 * turn + s, temperature=0.7 + 0.1 * (s % 7)) for s, p in prompts.items()]
        for request, sample in zip(requests, sample_all(sampler, requests), strict=True):
            expected = forward_logprobs(model, list(request.prompt_ids), sample.ids, request.temperature)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)
            prompts[request.session] = [*request.prompt_ids, *sample.ids, 9, *([8] * turn)]
        if turn == 1:  # an episode leaves, another comes
            sampler.end_session(1)
            del prompts[1]
            prompts[17] = [5, 5]


def test_logprobs_equal_a_plain_forward_pass_after_every_optimizer_step(sampler, model):
    prompt = [3, *range(10, 45), *range(10, 45), *range(10, 40)]  # 101 tokens: three whole blocks of vLLM's cache
    first = sample_all(sampler, [ask(0, prompt)])[0]
    for update in range(1, 4):
        change(model)
        old = forward_logprobs(model, prompt, first.ids)
        assert max(abs(a - b) for a, b in zip(old, first.logprobs, strict=True)) > 0.05, "the step is to be seen"
        assert sampler.weights_changed() == first.policy_version + update
        # one that goes on, one that is new; both begin with what was computed under the old weights
        for sample in sample_all(sampler, [ask(0, prompt), ask(update, prompt, seed=update)]):
            assert sample.logprobs == pytest.approx(forward_logprobs(model, prompt, sample.ids), abs=1e-4)
            assert sample.versions == ((first.policy_version + update, len(sample.ids)),)


def test_a_group_of_one_prompt_draws_as_each_would_alone(sampler):
    prompt = list(range(1, 41))
    group = sample_all(sampler, [ask(s, prompt, seed=2**62 + s) for s in range(8)])
    assert len({tuple(s.ids) for s in group}) > 1
    for s in range(8):
        sampler.end_session(s)
        assert sample_all(sampler, [ask(s, prompt, seed=2**62 + s)])[0].ids == group[s].ids


def test_samples_follow_the_distribution(sampler, model, kind):
    slow = any(part in kind for part in ("server", "small-prefill"))  # of which a draw takes milliseconds
    n = 2000 if kind == "vllm" else 500 if slow else 4000
    samples = sample_all(sampler, [ask(s, [1, 2, 3], seed=s, max_tokens=1, temperature=1.5) for s in range(n)])
    counts = torch.bincount(torch.tensor([s.ids[0] for s in samples]), minlength=VOCAB) / n
    with torch.no_grad():
        expected = torch.softmax(model.eval()(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1].float() / 1.5, -1)
    # 5 standard deviations of a share over n draws
    assert ((counts - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt() + 1e-3).all()


def test_temperature_zero_takes_the_most_likely_token(sampler, model):
    both = [ask(0, [1, 2, 3], temperature=0.0, stop_ids=frozenset()), ask(1, [1, 2, 3], temperature=2.0)]
    sample = sample_all(sampler, both)[0]
    ids = [1, 2, 3]
    for token in sample.ids:
        with torch.no_grad():
            assert token == int(model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert sample.logprobs == pytest.approx(forward_logprobs(model, [1, 2, 3], sample.ids), abs=1e-4)


def test_stop_token_ends_and_belongs_to_the_sample(sampler):
    samples = sample_all(sampler, [ask(s, [1, 2], seed=s, max_tokens=60, temperature=2.0) for s in range(8)])
    stopped = [s for s in samples if s.finish_reason == "stop"]
    assert stopped
    assert all(s.ids[-1] == STOP and STOP not in s.ids[:-1] for s in stopped)
    assert all(len(s.ids) == 60 and STOP not in s.ids for s in samples if s.finish_reason == "length")


def test_requests_come_back_as_they_finish(sampler):
    def come():
        sampler.submit(ask(1, [1, 2], max_tokens=100, stop_ids=frozenset()))
        sampler.submit(ask(0, [1, 2], max_tokens=1))
        batches = [[r.session for r, _ in wait(sampler)]]
        sampler.submit(ask(2, [3], max_tokens=2, stop_ids=frozenset()))  # joins while another is running
        while sampler.pending:
            batches.append([r.session for r, _ in wait(sampler)])
        for session in range(3):
            sampler.end_session(session)
        return batches

    for _ in range(20):  # whoever is held up, with a server that is not, finds several at once
        came = come()
        if came == [[0], [2], [1]]:
            break
    assert came == [[0], [2], [1]]
    assert sampler.step() == []


def test_an_ended_session_drops_its_request(sampler):
    sampler.submit(ask(0, [1, 2], max_tokens=100, stop_ids=frozenset()))
    sampler.submit(ask(1, [1, 2], max_tokens=3, stop_ids=frozenset()))
    sampler.end_session(0)
    sampler.end_session(99)  # nobody knows it
    assert sampler.pending == 1
    assert [r.session for r, _ in wait(sampler)] == [1]
    sampler.submit(ask(0, [1, 2], max_tokens=2, stop_ids=frozenset()))
    assert [(r.session, len(s.ids)) for r, s in wait(sampler)] == [(0, 2)]


def test_weights_may_change_while_a_request_runs(sampler, model):
    prompt = list(range(1, 21))
    steps = 10
    for attempt in range(40):  # a server does not say how far it is: it may not have begun, or be through
        before = copy.deepcopy(model)
        sampler.submit(ask(attempt, prompt, seed=attempt, max_tokens=100, stop_ids=frozenset()))
        early = []
        for _ in range(steps):
            if early := sampler.step():
                break
        change(model)
        version = sampler.weights_changed()
        [(_, sample)] = early or wait(sampler)
        if len(sample.versions) > 1:
            break
        not_begun = sample.policy_version == version
        steps = 2 * steps + 1 if not_begun else steps * 3 // 4
    (old, n_old), (new, n_new) = sample.versions
    assert (old, new, n_old + n_new) == (version - 1, version, 100)
    assert sample.policy_version == version - 1
    by_old, by_new = (forward_logprobs(m, prompt, sample.ids) for m in (before, model))
    assert sample.logprobs[:n_old] == pytest.approx(by_old[:n_old], abs=1e-4)
    assert sample.logprobs[n_old:] == pytest.approx(by_new[n_old:], abs=1e-4)


def test_sleep_lasts_until_the_weights_change(sampler, model):
    prompt = list(range(1, 41))
    sample_all(sampler, [ask(0, prompt)])
    sampler.sleep()
    change(model)
    sampler.weights_changed()
    sample = sample_all(sampler, [ask(0, prompt)])[0]
    assert sample.logprobs == pytest.approx(forward_logprobs(model, prompt, sample.ids), abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "changes", "names"),
    [
        ([], {}, "prompt_ids"),
        ([1, VOCAB], {}, f"{VOCAB}"),
        ([-1], {}, "-1"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"temperature": -0.1}, "temperature"),
        ([1], {"temperature": 2.5}, "temperature"),
        ([1] * 125, {}, "context of 128"),
    ],
)
def test_impossible_requests_are_refused(sampler, prompt, changes, names):
    with pytest.raises(ConfigError, match=names):
        sampler.submit(ask(0, prompt, **changes))
    assert sampler.pending == 0


@pytest.mark.parametrize("narrow", ["transformers-bfloat16", "vllm-bfloat16"])
def test_logits_of_a_bfloat16_model_are_not_rounded_to_bfloat16(made, narrow):
    """Between two tokens of one place, log-probabilities differ as logits do. bfloat16 from 1/2 on has multiples of
    1/256."""
    sampler = made(narrow)[1]
    for _ in range(2):  # also after a hand-over
        samples = sample_all(sampler, [ask(s, [1, 2, 3], seed=s, max_tokens=1, temperature=2.0) for s in range(40)])
        found = 2.0 * 256 * torch.tensor(sorted({sample.logprobs[0] for sample in samples}))
        assert len(found) > 10
        off = (found.diff() - found.diff().round()).abs()
        assert (off > 0.05).float().mean() > 0.5
        for session in range(40):
            sampler.end_session(session)
        sampler.weights_changed()


def test_a_changed_conversation_is_computed_anew(sampler, model):
    sample_all(sampler, [ask(0, [1, 2, 3, 4, 5])])
    sample = sample_all(sampler, [ask(0, [1, 2, 9, 9])])[0]
    assert sample.logprobs == pytest.approx(forward_logprobs(model, [1, 2, 9, 9], sample.ids), abs=1e-4)
