import collections

import pytest

from eh_gym.errors import ConfigError
from envs.bfcl.splits import CATEGORIES, SPLITS, scenarios, task_ids


def test_no_scenario_stands_in_two_splits():
    train, dev, test = (set(scenarios(split)) for split in ("train", "dev", "test"))
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert train | dev | test == set(scenarios("all")) == set(range(200))


def test_every_domain_is_split_alike():
    for split, share in (("train", 30), ("dev", 8), ("test", 12)):
        assert collections.Counter(index // 50 for index in scenarios(split)) == dict.fromkeys(range(4), share)


def test_the_splits_never_change():
    """Published figures rest on them."""
    assert scenarios("dev")[:6] == [2, 4, 15, 19, 31, 34]
    assert scenarios("test")[:6] == [3, 9, 11, 18, 23, 25]


def test_ids_are_the_official_ones_category_by_category():
    assert [len(task_ids(split)) for split in SPLITS] == [480, 128, 192, 800]
    assert list(task_ids("all", ["long_context"])) == [f"multi_turn_long_context_{i}" for i in range(200)]
    assert {i.removeprefix("multi_turn_").rsplit("_", 1)[0] for i in task_ids("test")} == set(CATEGORIES)


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="split must be"):
        scenarios("val")
    for categories in (["base", "live"], "base"):
        with pytest.raises(ConfigError, match="categories must be"):
            task_ids("all", categories)
    with pytest.raises(ConfigError, match="domains must be"):
        task_ids("all", domains=["math"])


def test_a_domain_has_its_fifty_scenarios():
    assert task_ids("all", ["base"], ["trading"]) == [f"multi_turn_base_{i}" for i in range(100, 150)]
    both = task_ids("test", ["base"], ["vehicle", "travel"])
    assert len(both) == 24
    assert set(both) < set(task_ids("test", ["base"]))


def test_the_same_scenario_stands_at_the_same_place_of_each_category(upstream):
    """Why the split is by index: the four entries of an index are one scenario, up to small corrections upstream."""

    def simulators(category, index):
        entry = upstream.call("entry", {"task_id": f"multi_turn_{category}_{index}"}, timeout_s=60)
        return set(entry["initial_config"]), sum(map(len, entry["ground_truth"]))

    for index in range(0, 200, 10):
        assert len({str(sorted(simulators(category, index)[0])) for category in CATEGORIES}) == 1
