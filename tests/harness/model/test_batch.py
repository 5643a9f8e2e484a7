import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

from harness.model.attention import PACKED
from harness.model.batch import collate, microbatches, pack
from harness.model.policy import Policy
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
}
MODELS = {
    "grouped heads": Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "sliding window": MistralConfig(**SMALL, num_key_value_heads=4, sliding_window=24),
}


def episode(group, prompt, replies, seed):
    rng = np.random.default_rng(seed)
    t = Trajectory(f"t{group}", group)
    t.add_prompt(prompt)
    for i, n in enumerate(replies):
        t.add_sample(Sample(rng.integers(0, 50, n).tolist(), (-rng.random(n)).tolist(), "stop", 0))
        if i + 1 < len(replies):
            t.add_prompt(rng.integers(0, 50, 3).tolist())
    return t


def prompt(tokens, seed):
    return np.random.default_rng(seed).integers(0, 50, tokens).tolist()


def some_episodes():
    """Groups that share much, nothing and everything but the end, in no order."""
    long, short = prompt(60, 1), prompt(7, 2)
    found = [episode(0, long, [3 + i, 2], 10 + i) for i in range(3)]
    found += [episode(1, short, [1, 4, 9], 20), episode(1, short, [40], 21)]
    found += [episode(2, prompt(33, 3), [5], 30)]
    twin = episode(3, prompt(50, 4), [6], 40)
    found += [twin, episode(3, prompt(50, 4), [6], 40)]
    return [found[i] for i in (5, 0, 3, 6, 1, 7, 4, 2)]


def small(kind, implementation):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[kind], attn_implementation=implementation)
    nothing = None
    return Policy(model, nothing, nothing)


def scored(policy, batch):
    """Log-probabilities and entropies of each episode, and gradients that depend on each token's place."""
    logp, entropy = policy.score(batch, 0.7)
    gradients = torch.autograd.grad(
        (logp * torch.arange(logp.numel()).view_as(logp).cos()).sum(), policy.model.parameters()
    )
    return [logp, entropy], list(gradients)


@pytest.mark.parametrize("kind", MODELS)
def test_packed_is_padded(kind):
    episodes = some_episodes()
    packed, padded = pack(episodes), collate(episodes, pad_id=49)
    assert packed.ids.shape == (1, sum(len(t.ids) for t in episodes) - 2 * 60 - 55)  # shared thrice, and twice
    values, gradients = scored(small(kind, PACKED), packed)
    expected_values, expected_gradients = scored(small(kind, "eager"), padded)
    for a, b in zip(values + gradients, expected_values + expected_gradients, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(b.detach().abs().max())))


@pytest.mark.parametrize("layout", [pack, lambda t: collate(t, pad_id=9)], ids=["packed", "padded"])
def test_the_tokens_that_the_model_wrote_are_scored(layout):
    a, b = Trajectory("a", 0), Trajectory("b", 1)
    a.add_prompt([1])
    a.add_sample(Sample([2, 3], [-1.0, -2.0], "stop", 0))
    b.add_prompt([4, 5])
    b.add_sample(Sample([6], [-3.0], "stop", 0))
    b.add_prompt([7])
    b.add_sample(Sample([8], [-4.0], "stop", 0))
    b.add_prompt([1])
    batch = layout([a, b])
    assert batch.targets.tolist() == [2, 3, 6, 8]
    assert batch.ids.flatten()[batch.sources].tolist() == [1, 2, 5, 7]
    assert batch.position_ids.flatten()[batch.sources].tolist() == [0, 1, 1, 3]
    assert batch.action_mask.tolist() == [[True, True], [True, True]]
    assert batch.logprobs.tolist() == [[-1.0, -2.0], [-3.0, -4.0]]
    assert (batch.ids.dtype, batch.action_mask.dtype, batch.logprobs.dtype) == (torch.int64, torch.bool, torch.float32)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(1, 300),
    st.integers(0, 60),
)
def test_microbatches_hold_every_episode_once_within_the_budget(episodes, budget, common):
    made = [episode(group, prompt(common + 1, group), [n], i) for i, (group, n) in enumerate(episodes)]
    parts = microbatches(made, budget)
    assert sorted(i for part in parts for i in part) == list(range(len(made)))
    for part in parts:
        assert len(part) == 1 or pack([made[i] for i in part]).ids.numel() <= budget


def test_a_group_is_split_only_where_it_must_be():
    groups = [[episode(g, prompt(100, g), [20], 10 * g + i) for i in range(4)] for g in range(2)]
    made = [t for pair in zip(*groups, strict=True) for t in pair]
    assert sorted(map(sorted, microbatches(made, 180))) == [[0, 2, 4, 6], [1, 3, 5, 7]]  # 100 + 4 * 20, not 480
    assert [len(part) for part in microbatches(made, 179)] == [3, 3, 1, 1]
    assert len(microbatches(made, 360)) == 1
