import copy
import random

import numpy as np
import pytest
import torch
from one_step import copied, one_step

from eh_gym.errors import ConfigError
from harness.machine.ranks import Ranks
from harness.model.lora import add_lora
from harness.settings.grpo import from_recipe
from harness.settings.optimizer import Optimizer
from harness.settings.section import changed
from harness.update.learner import Learner
from harness.update.optimizer import HostMoments, make_optimizer
from harness.update.try_update import _Memory, largest_microbatches, try_update, what_to_lower

CONFIG = changed(
    from_recipe("quickstart"), max_context=200, tokens_per_microbatch=512, warmup_updates=0, learning_rate=0.01
)


def learner_of(policy, *, offload=False, **changes):
    optimizer = make_optimizer(policy.model, Optimizer(learning_rate=0.01))
    config = changed(CONFIG, **changes)
    reference = copied(policy) if config.loss.kl_coef else None
    moments = HostMoments(optimizer) if offload else None
    return Learner(policy, optimizer, reference, config.loss, config.optimizer, 1.0, 1, 0, Ranks(), moments)


def state_of(learner):
    model, optimizer = learner.policy.model, learner.optimizer
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), gradients)), (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )


def assert_same(a, b):
    torch.testing.assert_close(a[0], b[0], rtol=0, atol=0)
    assert repr(a[1]) == repr(b[1])
    assert torch.equal(a[1][2], b[1][2])


@pytest.mark.parametrize(
    "how",
    [
        *("packed", "padded", "bfloat16", "adapters", "moments on the host", "KL term", "checkpointing"),
        pytest.param("compiled", marks=pytest.mark.campaign),  # half a minute of a C++ compiler
    ],
)
@pytest.mark.parametrize("moved", [False, True], ids=["new", "resumed"])
def test_nothing_is_another_afterwards(trained, how, moved):
    policy = copied(trained)
    if how == "padded":
        policy.model.set_attn_implementation("sdpa")
    if how == "bfloat16":
        policy.model.to(torch.bfloat16)
    if how == "adapters":
        add_lora(policy.model, 2, seed=0)
    if how == "checkpointing":
        policy.recompute(kept=1)
    if how == "compiled" and not moved:
        policy.compile_layers()
    kl = {"kl_coef": 0.1} if how == "KL term" else {}
    learner = learner_of(policy, offload=how == "moments on the host", minibatches=2, **kl)
    if moved:
        learner.update([one_step(policy, 0, reply, reward=float(i)) for i, reply in enumerate(("read()", "list()"))], 0)
    before = state_of(learner)
    try_update(learner, CONFIG)
    assert_same(state_of(learner), before)


@pytest.mark.parametrize(
    ("dtype", "free", "chosen"),  # in bytes: a layer keeps 10 for attention, or 100 for everything; 50 of 500 stay free
    [
        ("bfloat16", 40, (0, 0)),
        ("bfloat16", 69, (1, 0)),
        ("bfloat16", 70, (2, 0)),
        ("bfloat16", 160, (2, 1)),
        ("bfloat16", 250, (2, 2)),
        ("float32", 249, (0, 1)),
    ],
)
def test_as_many_layers_as_fit_are_not_computed_again(trained, monkeypatch, dtype, free, chosen):
    learner = learner_of(copied(trained))
    learner.policy.recompute()
    layers = learner.policy.recomputed_layers

    def present():
        kept = sum("context_fn" in layer._gradient_checkpointing_func.keywords for layer in layers)
        return kept, sum(not layer.gradient_checkpointing for layer in layers)

    def measured(update, _):
        update()
        kept, stored = present()
        return _Memory(1000 + 10 * max(0, kept - stored) + 100 * stored, free, 500)

    monkeypatch.setattr(_Memory, "of", measured)
    before = state_of(learner)
    said = try_update(learner, changed(CONFIG, recompute="fit", dtype=dtype))
    assert (present(), said[:40]) == (chosen, f"the backward pass computes {2 - chosen[1]} of 2 layers")
    assert_same(state_of(learner), before)


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79.10 GiB of which 512.00 MiB is free.",
            "at least 2.00 GiB are missing, and what comes after may need more",
        ),
        ("something else of the memory", "something else of the memory"),
    ],
)
def test_a_lack_of_memory_is_a_sentence_with_flags_of_this_run(trained, monkeypatch, error, missing):
    def full(*_, **__):
        raise torch.OutOfMemoryError(error)

    monkeypatch.setattr("harness.update.learner.update_policy", full)
    learner = learner_of(copied(trained))
    with pytest.raises(
        ConfigError, match=f"short for an update of 512 tokens .* {missing}; give --tokens-per"
    ) as raised:
        try_update(learner, CONFIG)
    assert "--tokens-per-microbatch 200 or --recompute all; " in str(raised.value)
    assert "--max-context below 200" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "named", "others"),
    [
        ({"recompute": "all"}, "--tokens-per-microbatch 200", "--recompute"),
        ({"max_staleness": 1, "rollout": "streaming"}, "fewer --slots", "--gpu-memory-utilization"),
        ({"sampler": "vllm"}, "--lora-rank 32", "--gpu-memory-utilization"),  # the engine sleeps
        ({"dtype": "bfloat16", "lora_rank": 8}, "a lower --lora-rank", "--dtype"),
        ({"tokens_per_microbatch": 200}, "--max-context below 200", "--tokens-per-microbatch 200"),
    ],
)
def test_only_flags_that_help_are_named(settings, named, others):
    said = what_to_lower(changed(CONFIG, **settings), 200)
    assert named in said
    assert others not in said


def test_the_tried_micro_batches_are_full():
    found = largest_microbatches(512, 200, words=50, ranks=2)
    assert [(t.tokens, t.action_tokens, t.reward) for t in found] == [(170, 169, float(i % 2)) for i in range(12)]
