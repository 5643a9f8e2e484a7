"""The agent is told what is left of its budget."""

import gymnasium as gym
import pytest

from eh_gym.errors import ConfigError
from eh_gym.horizon import FixedHorizon, StagedHorizon
from eh_gym.wrappers import BudgetHint, ElasticTimeLimit


def hinted(controller, **arguments):
    return BudgetHint(ElasticTimeLimit(gym.make("EH-Cabinet-v0"), controller), **arguments)


def test_every_observation_but_the_last_tells_the_steps_left():
    plain, env = ElasticTimeLimit(gym.make("EH-Cabinet-v0"), FixedHorizon(3)), hinted(FixedHorizon(3))
    start, _ = plain.reset(seed=1)
    assert env.reset(seed=1)[0] == start + "\n[3 of 3 steps left]"
    for suffix in ("\n[2 of 3 steps left]", "\n[1 of 3 steps left]", ""):
        expected = plain.step("list()")
        got = env.step("list()")
        assert got[0] == expected[0] + suffix
        assert got[1:] == expected[1:]


def test_an_episode_that_ends_early_ends_without_a_hint():
    env = hinted(FixedHorizon(30))
    env.reset(seed=0)
    observation, _, terminated, _, _ = env.step("submit(00)")
    assert terminated
    assert "steps left" not in observation


def test_it_follows_k_from_one_episode_to_the_next():
    controller = StagedHorizon({0: 4, 1: 9})
    env = hinted(controller, template=" ({left}/{horizon})")
    assert env.reset(seed=0)[0].endswith(" (4/4)")
    controller.update()
    assert env.step("list()")[0].endswith(" (3/4)")
    assert env.reset(seed=0)[0].endswith(" (9/9)")


def test_the_space_has_room_for_the_hint():
    plain, env = gym.make("EH-Cabinet-v0"), hinted(FixedHorizon(10**6))
    assert "x" * plain.observation_space.max_length + "\n[1000000 of 1000000 steps left]" in env.observation_space
    assert "x" * (plain.observation_space.max_length + 40) not in env.observation_space


def test_an_environment_without_a_horizon_or_texts_and_an_unknown_field_are_refused():
    with pytest.raises(ConfigError, match="wrap it in ElasticTimeLimit"):
        BudgetHint(gym.make("EH-Cabinet-v0"))
    with pytest.raises(ConfigError, match="texts"):
        BudgetHint(ElasticTimeLimit(gym.make("CartPole-v1"), FixedHorizon(3)))
    for template in ("{turns}", "{left", "{left.steps}", None):
        with pytest.raises(ConfigError, match=r"template .*\{left\} and \{horizon\}"):
            hinted(FixedHorizon(3), template=template)
