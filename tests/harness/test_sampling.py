"""One conformance suite over every sampler; `transformers` on a tiny Qwen2 here."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from eh_gym.errors import ConfigError
from harness.sampling.base import Sampler, SampleRequest, sample_all
from harness.sampling.transformers import TransformersSampler

VOCAB, STOP = 50, 7


@pytest.fixture
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=STOP,
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture(params=["transformers", "transformers-small-prefill"])
def sampler(request: pytest.FixtureRequest, model: Qwen2ForCausalLM) -> Sampler:
    return TransformersSampler(model, max_prefill_tokens=16_384 if request.param == "transformers" else 8)


def ask(session: int, prompt: list[int], seed: int = 0, **changes: object) -> SampleRequest:
    return SampleRequest(session, prompt, **{"max_tokens": 6, "seed": seed, "stop_ids": frozenset({STOP}), **changes})  # type: ignore[arg-type]


def forward_logprobs(model: Qwen2ForCausalLM, prompt: list[int], ids: list[int], temperature: float) -> list[float]:
    """The slow, obvious way: one unpadded pass over the whole text."""
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0].float() / temperature
    logp = torch.log_softmax(logits, -1)
    return [float(logp[len(prompt) + i - 1, t]) for i, t in enumerate(ids)]


def test_is_a_sampler(sampler: Sampler) -> None:
    assert isinstance(sampler, Sampler)


def test_logprobs_equal_a_plain_forward_pass_over_several_turns(sampler: Sampler, model: Qwen2ForCausalLM) -> None:
    prompts = {s: [1 + s, 2, 3] + [4] * s for s in range(5)}  # of unequal length
    for turn in range(4):
        requests = [ask(s, p, seed=100 * turn + s, temperature=0.7 + 0.2 * s) for s, p in prompts.items()]
        for request, sample in zip(requests, sample_all(sampler, requests), strict=True):
            expected = forward_logprobs(model, list(request.prompt_ids), sample.ids, request.temperature)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)
            prompts[request.session] = [*request.prompt_ids, *sample.ids, 9, *([8] * turn)]  # type: ignore[index]
        if turn == 1:  # an episode leaves, another comes
            sampler.end_session(1)
            del prompts[1]
            prompts[17] = [5, 5]


def test_draws_depend_on_the_request_alone(sampler: Sampler) -> None:
    alone = sample_all(sampler, [ask(0, [1, 2, 3], seed=5)])[0]
    sampler.end_session(0)
    crowd = [ask(s, [1, 2, 3] if s == 3 else [4 + s] * (s + 1), seed=5 if s == 3 else s) for s in range(6)]
    assert sample_all(sampler, crowd)[3].ids == alone.ids


def test_another_seed_draws_something_else(sampler: Sampler) -> None:
    samples = sample_all(sampler, [ask(s, [1, 2, 3], seed=s) for s in range(8)])
    assert len({tuple(s.ids) for s in samples}) > 1


def test_samples_follow_the_distribution(sampler: Sampler, model: Qwen2ForCausalLM) -> None:
    n = 4000
    samples = sample_all(sampler, [ask(s, [1, 2, 3], seed=s, max_tokens=1, temperature=1.5) for s in range(n)])
    counts = torch.bincount(torch.tensor([s.ids[0] for s in samples]), minlength=VOCAB) / n
    with torch.no_grad():
        expected = torch.softmax(model.eval()(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1].float() / 1.5, -1)
    # 5 standard deviations of a share over 4000 draws
    assert ((counts - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt() + 1e-3).all()


def test_temperature_zero_takes_the_most_likely_token(sampler: Sampler, model: Qwen2ForCausalLM) -> None:
    sample = sample_all(sampler, [ask(0, [1, 2, 3], temperature=0.0, stop_ids=frozenset())])[0]
    ids = [1, 2, 3]
    for token in sample.ids:
        with torch.no_grad():
            assert token == int(model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert sample.logprobs == pytest.approx(forward_logprobs(model, [1, 2, 3], sample.ids, 1.0), abs=1e-4)


def test_stop_token_ends_and_belongs_to_the_sample(sampler: Sampler) -> None:
    samples = sample_all(sampler, [ask(s, [1, 2], seed=s, max_tokens=60, temperature=3.0) for s in range(8)])
    stopped = [s for s in samples if s.finish_reason == "stop"]
    assert stopped
    assert all(s.ids[-1] == STOP and STOP not in s.ids[:-1] for s in stopped)
    assert all(len(s.ids) == 60 and STOP not in s.ids for s in samples if s.finish_reason == "length")


def test_requests_come_back_as_they_finish(sampler: Sampler) -> None:
    sampler.submit(ask(0, [1, 2], max_tokens=1))
    sampler.submit(ask(1, [1, 2], max_tokens=9, stop_ids=frozenset()))
    assert [r.session for r, _ in sampler.step()] == [0]
    sampler.submit(ask(2, [3], max_tokens=2, stop_ids=frozenset()))  # joins while another is running
    order = [r.session for _ in range(30) for r, _ in sampler.step()]
    assert order == [2, 1]
    assert sampler.pending == 0


def test_new_weights_are_used_at_once_and_the_version_counts(sampler: Sampler, model: Qwen2ForCausalLM) -> None:
    first = sample_all(sampler, [ask(0, [1, 2, 3], stop_ids=frozenset())])[0]
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5).add_(0.01)
    assert sampler.weights_changed() == first.policy_version + 1
    prompt = [1, 2, 3, *first.ids, 9]
    second = sample_all(sampler, [ask(0, prompt, stop_ids=frozenset())])[0]
    assert second.policy_version == first.policy_version + 1
    assert second.logprobs == pytest.approx(forward_logprobs(model, prompt, second.ids, 1.0), abs=1e-4)


def test_weights_may_change_while_a_request_runs(sampler: Sampler, model: Qwen2ForCausalLM) -> None:
    sampler.submit(ask(0, [1, 2, 3], max_tokens=4, stop_ids=frozenset()))
    sampler.step()
    sampler.step()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    sampler.weights_changed()
    done = [sample for _ in range(4) for _, sample in sampler.step()]
    expected = forward_logprobs(model, [1, 2, 3], done[0].ids, 1.0)
    assert done[0].logprobs[2:] == pytest.approx(expected[2:], abs=1e-4)


def test_a_changed_conversation_is_computed_anew(sampler: Sampler, model: Qwen2ForCausalLM) -> None:
    sample_all(sampler, [ask(0, [1, 2, 3, 4, 5])])
    sample = sample_all(sampler, [ask(0, [1, 2, 9, 9])])[0]
    assert sample.logprobs == pytest.approx(forward_logprobs(model, [1, 2, 9, 9], sample.ids, 1.0), abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "changes", "message"),
    [
        ([], {}, "prompt_ids is empty"),
        ([1, VOCAB], {}, f"holds {VOCAB}, outside the model's vocabulary of {VOCAB}"),
        ([-1], {}, "holds -1"),
        ([1], {"max_tokens": 0}, "max_tokens must be >= 1"),
        ([1], {"temperature": -0.1}, "temperature must be >= 0"),
        ([1] * 125, {}, "exceed the context of 128"),
    ],
)
def test_impossible_requests_are_refused(
    sampler: Sampler, prompt: list[int], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sampler.submit(ask(0, prompt, **changes))  # type: ignore[arg-type]
    assert sampler.pending == 0


def test_a_session_has_one_request_at_a_time(sampler: Sampler) -> None:
    sampler.submit(ask(0, [1]))
    with pytest.raises(ConfigError, match="already has a request"):
        sampler.submit(ask(0, [1, 2]))


def test_sliding_windows_are_refused(model: Qwen2ForCausalLM) -> None:
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="needs full attention in every layer"):
        TransformersSampler(model)
