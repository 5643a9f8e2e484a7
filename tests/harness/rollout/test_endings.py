"""What an episode has earned, for every kind of end and every player; tests/support/endings.py has the table."""

import pytest
from endings import ENDS, K

from eh_gym import EpisodeOutcome, FixedHorizon
from harness.evaluation.endpoint import ChatEndpoint
from harness.evaluation.play import play_script
from harness.evaluation.play_endpoint import play_with_endpoint
from harness.rollout.environment import Environments
from harness.rollout.rollout import rollout
from harness.settings.evaluate import Endpoint
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory, settle

REQUESTS = [EpisodeRequest(task_id, group, group) for group, task_id in enumerate(ENDS)]


ENVIRONMENTS = Environments("Endings-v0", {}, slots=2, threads=0)


def settings_of(keep, mode="lockstep"):
    return Rollout(rollout=mode, truncated_reward="keep" if keep else "zero", max_action_tokens=8)


def sampled(fake, settings, context=10_000):
    envs = ENVIRONMENTS.open(FixedHorizon(K))
    try:
        return rollout(envs, fake.Sampler(context), fake.Chat(), REQUESTS, settings)
    finally:
        envs.close()


@pytest.mark.parametrize("keep", [False, True], ids=["zero", "keep"])
@pytest.mark.parametrize("player", ["script", "lockstep", "streaming", "endpoint"])
def test_every_end_earns_what_the_table_says(player, keep, fake, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    if player == "script":
        played = play_script("empty", ENVIRONMENTS, REQUESTS, settings_of(keep), horizon=K)
    elif player == "endpoint":
        with chat_server.serve(lambda request, _: "go") as server:
            endpoint = lambda: ChatEndpoint("model", Endpoint(base_url=server.url))  # noqa: E731
            played = play_with_endpoint(endpoint, ENVIRONMENTS, REQUESTS, settings_of(keep), horizon=K)
    else:
        played = sampled(fake, settings_of(keep, player))
    for (name, end), t in zip(ENDS.items(), played, strict=True):
        expected = pytest.approx(end.keep if keep else end.zero), end.success, end.stopped
        assert (t.reward, t.success, t.truncated) == expected, name
        assert t.outcome() == EpisodeOutcome(min(len(end.rewards), K), K, end.success, end.stopped, name)


@pytest.mark.parametrize("keep", [False, True], ids=["zero", "keep"])
def test_an_episode_that_filled_the_context_is_stopped(keep, fake):
    for (name, end), t in zip(ENDS.items(), sampled(fake, settings_of(keep), context=11), strict=True):
        assert (t.end, t.length, t.success) == ("context", 1, False), name
        assert t.reward == (end.rewards[0] if keep else min(end.rewards[0], 0.0)), name


def test_an_episode_that_nobody_can_score_earns_the_least_of_its_group_and_at_most_nothing():
    rewards = [(0, 1.0), (0, None), (1, -3.0), (1, None), (1, -2.0), (2, None)]
    episodes = [Trajectory("t", group, reward=reward or 0.0, unscored=reward is None) for group, reward in rewards]
    lost = Trajectory("t", 0, reward=-9.0, end="environment-error")
    settle([lost, *episodes])
    assert [t.reward for t in episodes] == [1.0, 0.0, -3.0, -3.0, -2.0, 0.0]
