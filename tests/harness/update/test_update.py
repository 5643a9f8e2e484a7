import math
from typing import get_args

import pytest
import torch
from one_step import copied, update
from one_step import one_step as episode

from harness.machine.ranks import Ranks
from harness.settings.loss import Aggregation, Loss
from harness.types.sampler import Sample
from harness.types.trajectory import LENGTH_BINS, Trajectory, Turn
from harness.update.mismatch import Mismatch
from harness.update.reference import reference_policy
from harness.update.update import select_episodes


@pytest.fixture
def policy(trained):
    return copied(trained)


def group_of(policy, *rewards):
    replies = ["open(a)", "open(b)", "open(c)", "open(d)"]
    return [episode(policy, 0, reply, reward=reward) for reply, reward in zip(replies, rewards, strict=False)]


def choose(trajectories, **changes):
    settings = Loss(**{"normalize_std": False, **changes})
    chosen, differing = select_episodes(trajectories, settings)
    return [(t.turns[0].action, a) for t, a in chosen], differing


def test_equal_groups_are_dropped_and_counted(policy):
    group = group_of(policy, 1.0, 0.0)
    equal = [episode(policy, 1, "open(c)", reward=1.0), episode(policy, 1, "open(d)", reward=1.0)]
    assert choose(group + equal) == ([("open(a)", 0.5), ("open(b)", -0.5)], {0})
    for t in group:
        t.reward += 1e8
    tie = episode(policy, 0, "read()", reward=1e8 + 0.5)
    assert choose([*group, tie]) == ([("open(a)", 0.5), ("open(b)", -0.5), ("read()", 0.0)], {0})


def test_the_kl_term_alone_trains(trained):
    learner = copied(trained)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    equal = [episode(learner, 1, "open(c)", reward=1.0), episode(learner, 1, "open(d)", reward=1.0)]
    optimizer = torch.optim.SGD(learner.model.parameters(), lr=0.01)
    first, second = (
        update(learner, optimizer, equal, reference=trained, kl_coef=1.0)["train/kl_ref"] for _ in range(2)
    )
    assert 0 < second < first


def test_a_failed_environment_is_in_no_mean(policy):
    group = group_of(policy, 1.0, 0.0)
    lost = episode(policy, 0, "open(c)", reward=0.0, end="environment-error")
    assert choose([*group, lost]) == choose(group)


@pytest.mark.parametrize("end", ["horizon", "truncated", "context"])
def test_stopped_episodes_count_in_the_mean_and_have_the_weight_that_they_are_given(policy, end):
    """One that filled the context keeps its weight: with less, writing much would take a failure out of the loss."""
    ends = ["terminated", "terminated", end]
    group = [episode(policy, 0, f"open({i})", reward=float(i == 0), end=how) for i, how in enumerate(ends)]
    # The mean is 1/3, with the stopped episode in it.
    for weight, last in ((1.0, [-1 / 3]), (0.3, [-0.1]), (0.0, [])):
        expected = [2 / 3, -1 / 3, *([-1 / 3] if end == "context" else last)]
        assert [a for _, a in choose(group, truncated_weight=weight)[0]] == pytest.approx(expected)


def with_changed_history(policy, group, replies, *, reward):
    """An episode whose every turn begins another sequence. All begin with a prompt that is long enough to be shared."""
    t = Trajectory(f"t{group}", group, reward=reward, turns=[Turn(reply) for reply in replies])
    beginning = policy.chat.prompt_ids("", "start c " * 20)
    for number, reply in enumerate(replies):
        t.go_on(beginning + number * policy.chat.observation_ids(f"{number}", stopped=True))
        ids = policy.chat.reply_ids(reply)
        t.add_sample(Sample(ids, [0.0] * len(ids), "stop", 0))
    with torch.no_grad():
        for sequence in t.sequences:
            first = sequence.action_mask.index(1)
            sequence.logprobs[first:] = scores(policy, sequence.ids)[0][first - 1 :].tolist()
    return t


def scores(policy, ids):
    drawn = torch.distributions.Categorical(logits=policy.model(input_ids=torch.tensor([ids])).logits[0, :-1].float())
    return drawn.log_prob(torch.tensor(ids[1:])), drawn.entropy()


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("tokens", [1, 10_000])
def test_an_episode_of_several_sequences_counts_once(trained, aggregation, tokens):
    policies = [copied(trained) for _ in range(2)]
    good = with_changed_history(policies[0], 0, ["open(a)", "read()", "submit(73)"], reward=1.0)
    bad = with_changed_history(policies[0], 0, ["list()"], reward=0.0)
    assert [len(t.sequences) for t in (good, bad)] == [3, 1]
    optimizer = torch.optim.SGD(policies[0].model.parameters(), lr=0.1)
    how = {"aggregation": aggregation, "tokens_per_microbatch": tokens}
    metrics = update(policies[0], optimizer, [good, bad], normalize_std=False, max_grad_norm=1e9, **how)

    written = [sum(len(trained.chat.reply_ids(turn.action)) for turn in t.turns) for t in (good, bad)]
    loss, entropy = torch.zeros(()), 0.0
    for t, advantage, count in zip((good, bad), (0.5, -0.5), written, strict=True):
        # One step from the weights that sampled: each token's ratio is 1, and its gradient that of -advantage * logp.
        share = {"seq-mean": 1 / (2 * count), "token-mean": 1 / sum(written)}[aggregation]
        for sequence in t.sequences:
            first = sequence.action_mask.index(1)
            logp, entropies = (each[first - 1 :].sum() for each in scores(policies[1], sequence.ids))
            loss, entropy = loss - advantage * share * logp, entropy + entropies.item()
    loss.backward()
    with torch.no_grad():
        for p, q in zip(policies[0].model.parameters(), policies[1].model.parameters(), strict=True):
            torch.testing.assert_close(p, q - 0.1 * q.grad, atol=1e-6, rtol=1e-4)
    assert all(p.grad is None for p in policies[0].model.parameters())  # the next rollout's memory
    assert metrics["train/episodes_in_loss"] == 2
    assert metrics["train/tokens_in_loss"] == sum(written)
    assert metrics["train/entropy"] == pytest.approx(entropy / sum(written), rel=1e-4)
    assert metrics["train/logp_difference_max"] < 1e-4
    if tokens > 1:  # the beginning of the group is in the row once
        row = trained.batch([*good.sequences, *bad.sequences])
        shared = len(trained.chat.prompt_ids("", "start c " * 20))
        assert row.ids.numel() == good.tokens + bad.tokens - 3 * shared


def test_nothing_to_learn_is_no_step_and_finite_metrics(policy):
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    before = [p.clone() for p in policy.model.parameters()]
    metrics = update(policy, optimizer, group_of(policy, 0.0, 0.0))
    assert metrics["train/zero_advantage_groups"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    nothing = {name for name, value in metrics.items() if math.isnan(value)}
    compared = ("max", "mean", *(name for name, _ in LENGTH_BINS))
    assert nothing == {"train/entropy", *(f"train/logp_difference_{name}" for name in compared)}
    assert all(math.isfinite(metrics[name]) for name in metrics.keys() - nothing)


def test_a_gradient_that_is_not_finite_is_counted_and_steps_nothing(policy):
    overflowing = group_of(policy, math.nan, 0.0)  # stands for whatever overflows
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3)
    before = [p.clone() for p in policy.model.parameters()]
    metrics = update(policy, optimizer, overflowing)
    assert metrics["train/skipped_steps"] == 1.0
    assert math.isnan(metrics["train/grad_norm"])
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    assert not optimizer.state  # nor has it a moment of it
    assert update(policy, optimizer, group_of(policy, 1.0, 0.0))["train/skipped_steps"] == 0.0
    assert all(p.isfinite().all() for p in policy.model.parameters())


def skewed(t, by):
    """The episode as a sampler would have reported it whose log-probabilities are higher by `by`."""
    t.logprobs = [lp + by * m for lp, m in zip(t.logprobs, t.action_mask, strict=True)]
    return t


def moved(trained, by, *, more=0.0, minibatches=1, **changes):
    """The change of the weights in one update whose sampler was off by `by`, and by `more` with each episode; the
    metrics."""
    policy = copied(trained)
    replies = ["open(a)", "read()", "submit(73)", "list()"]
    episodes = [skewed(episode(policy, i // 2, r, reward=float(i % 2)), by + i * more) for i, r in enumerate(replies)]
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.01)
    metrics = update(policy, optimizer, episodes, minibatches=minibatches, max_grad_norm=1e9, **changes)
    old = trained.model.parameters()
    return [a.detach() - b.detach() for a, b in zip(policy.model.parameters(), old, strict=True)], metrics


@pytest.mark.parametrize(("by", "weight"), [(-math.log(1.5), 1.5), (-math.log(4), 2.0), (math.log(2), 0.5)])
def test_importance_weights_scale_the_gradient_of_every_token(trained, by, weight):
    plain, _ = moved(trained, 0.0)
    weighted, metrics = moved(trained, by, tis_cap=2.0)
    torch.testing.assert_close(weighted, [weight * change for change in plain], atol=1e-6, rtol=1e-3)
    assert metrics["train/tis_weight_mean"] == pytest.approx(weight, rel=1e-3)
    assert metrics["train/tis_capped"] == float(weight == 2.0)
    assert metrics["train/clip_fraction"] == 0.0


def test_without_weights_the_clipping_is_about_the_sampler(trained):
    _, metrics = moved(trained, -math.log(4))
    assert 0.2 < metrics["train/clip_fraction"] < 0.8
    assert not any(name.startswith("train/tis") for name in metrics)


def test_later_steps_are_compared_with_the_weights_before_the_first(trained):
    by = -math.log(1.5)
    _, one = moved(trained, by, tis_cap=2.0, more=-0.1)
    _, four = moved(trained, by, tis_cap=2.0, more=-0.1, minibatches=4)
    for name in ("train/tis_weight_mean", "train/logp_difference_mean", "train/logp_difference_max"):
        assert four[name] == pytest.approx(one[name], rel=1e-4)
    # Without weights what the first step alone covers is logged: it costs no pass of its own.
    _, first = moved(trained, by, minibatches=4)
    assert first["train/logp_difference_mean"] == pytest.approx(-by, rel=1e-3)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_the_kl_term_does_not_scale_the_rest_of_the_loss(trained, aggregation):

    def norm(kl_coef):
        policy = copied(trained)
        replies = ["open(a)", "open(b)", "open(c)", "open(d)"]
        episodes = [episode(policy, i // 2, r, reward=float(i == 0)) for i, r in enumerate(replies)]
        optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
        metrics = update(policy, optimizer, episodes, reference=trained, kl_coef=kl_coef, aggregation=aggregation)
        return metrics["train/grad_norm"]

    assert norm(1e-9) == pytest.approx(norm(0.0), rel=1e-4)


def test_the_kl_is_that_of_the_policy_that_sampled(trained):
    _, metrics = moved(trained, math.log(4))
    assert metrics["train/approx_kl"] == pytest.approx(1 / 4 + math.log(4) - 1, rel=1e-3)


def test_the_mismatch_is_that_of_all_ranks(trained, monkeypatch):
    other = Mismatch()
    other._max = 9.0
    monkeypatch.setattr(Ranks, "gather", lambda _, mine: [*mine, (mine[0][0], other)])
    assert moved(trained, 0.0)[1]["train/logp_difference_max"] == 9.0


def test_the_reference_is_frozen_and_found_again(policy, tmp_path):
    policy.model.train()
    for first in (True, False):
        reference = reference_policy(policy, tmp_path / "first", "cpu", Ranks(), first=first, packing=True).model
        assert not reference.training
        for p, kept in zip(policy.model.parameters(), reference.parameters(), strict=True):
            assert (p is not kept, p.requires_grad, kept.requires_grad) == (True, True, False)
            assert torch.equal(p, kept)
