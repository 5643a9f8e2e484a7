import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, KeyedHorizon


def make():
    return ElasticHorizon(k0=15, min_successes=2, alpha=1)


def succeed(keyed, level, *lengths):
    for length in lengths:
        keyed.record(EpisodeOutcome(length, 50, True, info={"level": level, "task_id": "x"}))


def test_each_kind_follows_its_own_successes():
    keyed, alone = KeyedHorizon(make, "level"), make()
    succeed(keyed, "hard", 30, 30)
    succeed(keyed, "easy", 4)
    succeed(keyed, "easy", 4)
    for _ in range(2):
        alone.record(EpisodeOutcome(4, 50, True))
    alone.update()
    assert keyed.update() == {"horizon/k": 40.0, "horizon/k_of/easy": 14.0, "horizon/k_of/hard": 40.0}
    assert keyed.horizons == {"easy": alone.horizon, "hard": 40} == {"easy": 14, "hard": 40}
    assert [keyed.horizon_for({"level": level}, 7) for level in ("hard", "easy", "new")] == [40, 14, 15]
    assert keyed.horizon == 40


def test_a_state_of_another_kind_of_controller_is_refused():
    keyed = KeyedHorizon(make, "level")
    succeed(keyed, "easy", 4, 4)
    with pytest.raises(StateError, match="saved settings"):
        KeyedHorizon(lambda: ElasticHorizon(k0=20), "level").load_state_dict(keyed.state_dict())
    with pytest.raises(StateError, match="controllers must be"):
        keyed.load_state_dict(keyed.state_dict() | {"controllers": [1]})
    succeed(keyed, "hard", 4)
    broken = keyed.state_dict()
    broken["controllers"]["easy"]["k_real"] = 7
    broken["controllers"]["hard"]["k_real"] = 99
    before = keyed.state_dict()
    with pytest.raises(StateError, match="k_real must be in"):
        keyed.load_state_dict(broken)
    assert keyed.state_dict() == before


def test_a_controller_with_the_five_required_members_alone_is_enough():
    class Bare(FixedHorizon):
        def state_dict(self):
            return {"updates": 0}

        def load_state_dict(self, state):
            assert state == {"updates": 0}

    keyed = KeyedHorizon(lambda: Bare(5), "level")
    succeed(keyed, "easy", 4)
    again = KeyedHorizon(lambda: Bare(5), "level")
    again.load_state_dict(keyed.state_dict())
    assert again.horizons == {"easy": 5}


def test_wrong_arguments_and_an_info_without_the_key_are_refused():
    for wrong in (lambda: 15, lambda: ElasticHorizon):
        with pytest.raises(ConfigError, match="make must"):
            KeyedHorizon(wrong, "level")
    with pytest.raises(ConfigError, match="key must be"):
        KeyedHorizon(make, lambda info: info["app"])
    with pytest.raises(ConfigError, match=r"'level'.*\['app', 'task_id'\]"):
        KeyedHorizon(make, "level").horizon_for({"task_id": "x", "app": 1}, None)
    with pytest.raises(ConfigError, match="'level'"):
        KeyedHorizon(make, "level").record(EpisodeOutcome(3, 50, True))
