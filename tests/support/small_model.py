"""A small model with random weights, requests to it, and its log-probabilities by the slow, obvious way."""

import time

import torch

from harness.model.fresh import fresh_qwen2
from harness.types.sampler import SampleRequest

VOCAB, STOP, CONTEXT = 50, 7, 128


def new_model(*, tied=True):
    return fresh_qwen2(VOCAB, 64, 64, 2, 2, 1, tied=tied, positions=CONTEXT, eos_id=STOP, initializer_range=0.3)


def ask(session, prompt, seed=0, **changes):
    """A request of six tokens that another turn, prompt, seed, length may be given to."""
    return SampleRequest(session, prompt, **{"max_tokens": 6, "seed": seed, "stop_ids": frozenset({STOP}), **changes})


def wait(sampler):
    deadline = time.monotonic() + 120
    while not (ready := sampler.step()):
        assert time.monotonic() < deadline, "nothing came back within two minutes"
    return ready


def drain(sampler):
    found = []
    while sampler.pending:
        found += sampler.step()
    return found


def plain_logprobs(model, ids, temperature=1.0):
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def forward_logprobs(model, prompt, ids, temperature=1.0):
    return plain_logprobs(model, [*prompt, *ids], temperature)[-len(ids) :]


def of_written(values, tokens):
    """Of values for each token, or for each after the first, those of what the model wrote."""
    return [x for x, written in zip(values, tokens.action_mask[-len(values) :], strict=True) if written]
