"""Each kind of task has a K of its own."""

import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, KeyedHorizon


def make():
    return ElasticHorizon(k0=15, min_successes=2, alpha=1)


def kind(task_id):
    return "none" if task_id is None else task_id.split("-")[0]


def succeed(keyed, task_id, *lengths):
    for length in lengths:
        keyed.record(EpisodeOutcome(length, 50, True, task_id=task_id))


def test_each_kind_follows_its_own_successes():
    keyed, alone = KeyedHorizon(make, kind), make()
    succeed(keyed, "hard-1", 30, 30)
    succeed(keyed, "easy-1", 4)
    succeed(keyed, "easy-2", 4)
    for _ in range(2):
        alone.record(EpisodeOutcome(4, 50, True))
    alone.update()
    assert keyed.update() == {"horizon/k": 40.0}
    assert keyed.horizons == {"easy": alone.horizon, "hard": 40} == {"easy": 14, "hard": 40}
    assert [keyed.horizon_for(task, 7) for task in ("hard-9", "easy-9", "new-1", None)] == [40, 14, 15, 15]
    assert keyed.horizon == 40


def test_a_kind_without_enough_successes_stays_where_it_began():
    keyed = KeyedHorizon(make, kind)
    succeed(keyed, "easy-1", 4, 4)
    succeed(keyed, "hard-1", 40)
    keyed.update()
    assert keyed.horizons == {"easy": 14, "hard": 15}


def test_a_state_of_another_kind_of_controller_is_refused():
    keyed = KeyedHorizon(make, kind)
    succeed(keyed, "easy-1", 4, 4)
    with pytest.raises(StateError, match="build it with the saved settings"):
        KeyedHorizon(lambda: ElasticHorizon(k0=20), kind).load_state_dict(keyed.state_dict())
    with pytest.raises(StateError, match="controllers must be states by kind"):
        keyed.load_state_dict(keyed.state_dict() | {"controllers": [1]})
    succeed(keyed, "hard-1", 4)
    broken = keyed.state_dict()
    broken["controllers"]["easy"]["k_real"] = 7
    broken["controllers"]["hard"]["k_real"] = 99
    before = keyed.state_dict()
    with pytest.raises(StateError, match="k_real must be in"):
        keyed.load_state_dict(broken)
    assert keyed.state_dict() == before


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="make must return a HorizonController"):
        KeyedHorizon(lambda: 15, kind)
    with pytest.raises(ConfigError, match="key must be a function of a task id"):
        KeyedHorizon(make, "app")
