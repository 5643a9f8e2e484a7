import collections

from envs.bfcl.splits import CATEGORIES, SPLITS, scenarios, task_ids


def test_no_scenario_stands_in_two_splits_and_every_domain_is_split_alike():
    train, dev, test = (set(scenarios(split)) for split in ("train", "dev", "test"))
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert train | dev | test == set(scenarios("all")) == set(range(200))
    for split, share in (("train", 30), ("dev", 8), ("test", 12)):
        assert collections.Counter(index // 50 for index in scenarios(split)) == dict.fromkeys(range(4), share)


def test_the_splits_never_change():
    assert scenarios("dev")[:6] == [2, 4, 15, 19, 31, 34]
    assert scenarios("test")[:6] == [3, 9, 11, 18, 23, 25]


def test_ids_are_the_official_ones_category_by_category():
    assert [len(task_ids(split)) for split in SPLITS] == [480, 128, 192, 800]
    assert list(task_ids("all", ["long_context"])) == [f"multi_turn_long_context_{i}" for i in range(200)]
    for number, domain in enumerate(("file_system", "vehicle", "trading", "travel")):
        assert task_ids("all", ["base"], [domain])[0] == f"multi_turn_base_{50 * number}"
    assert {i.removeprefix("multi_turn_").rsplit("_", 1)[0] for i in task_ids("test")} == set(CATEGORIES)
