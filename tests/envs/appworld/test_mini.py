"""The mini world: what is in it, that it is built the same again, and that an unsound task stops the build."""

import filecmp
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from eh_gym.errors import EHError
from envs.appworld import data
from envs.appworld.mini.scenarios import SCENARIOS
from envs.appworld.mini.task import task_id
from envs.appworld.mini.world import APPS
from envs.commands import run

SCENARIO = "amazon_wish_list_moved"  # the cheapest to play


@pytest.fixture(scope="module")
def root(appworld_python):
    return data.root_of("mini")


@pytest.fixture(scope="module")
def tasks(root):
    """Id -> what the data say about a task."""
    found = {}
    for identifier in data.task_ids("mini"):
        folder = root / "data" / "tasks" / identifier
        parts = {
            name: json.loads((folder / "ground_truth" / f"{name}.json").read_text())
            for name in ("answer", "metadata", "required_apps")
        }
        found[identifier] = {**json.loads((folder / "specs.json").read_text()), **parts}
    return found


@pytest.fixture
def build(appworld_python, tmp_path):
    def make(dest, builder=data.BUILDER):
        home = tmp_path / "home"
        home.mkdir()
        run([str(appworld_python), "-B", str(builder), str(dest), SCENARIO], cwd=home, home=home)

    return make


def test_every_scenario_has_its_variants_and_the_difficulties_and_apps_are_there(tasks):
    variants = {task_id(name, 1).split("_")[0]: len(scenario.variants) for name, scenario in SCENARIOS.items()}
    assert Counter(identifier.split("_")[0] for identifier in tasks) == variants
    assert {task["metadata"]["difficulty"] for task in tasks.values()} == {1, 2, 3}
    assert {app for task in tasks.values() for app in task["required_apps"]} == set(APPS) - {"splitwise"}
    assert {task["answer"] is None for task in tasks.values()} == {True, False}


@pytest.mark.campaign
def test_a_second_build_gives_the_same_bytes(build, root, tmp_path):
    build(tmp_path / "again")
    first, second = root / "data", tmp_path / "again" / "data"
    built = {path.relative_to(second) for path in second.rglob("*") if path.is_file()}
    numbers = range(1, 1 + len(SCENARIOS[SCENARIO].variants))
    expected = {
        path.relative_to(first)
        for part in ("base_dbs", "api_docs", *(f"tasks/{task_id(SCENARIO, number)}" for number in numbers))
        for path in (first / part).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"  # an engine used as its README says leaves them
    }
    assert built - expected == {Path("datasets/mini.txt"), Path("version.txt")}
    assert expected <= built
    assert [str(path) for path in sorted(expected) if not filecmp.cmp(first / path, second / path, shallow=False)] == []


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "apis.amazon.add_product_to_cart(",
            "apis.amazon.move_product_from_wish_list_to_cart(",
            "wrong solution passes",
        ),
        ('"quantity": one.quantity}', '"quantity": one.quantity + 1}', "reference solution fails"),
    ],
)
def test_an_unsound_task_stops_the_build(build, tmp_path, old, new, complaint):
    shutil.copytree(data.BUILDER.parent, tmp_path / "mini", ignore=shutil.ignore_patterns("__pycache__"))
    scenarios = tmp_path / "mini" / "scenarios.py"
    source = scenarios.read_text()
    assert old in source
    scenarios.write_text(source.replace(old, new))
    with pytest.raises(EHError, match=f"Unsound: {task_id(SCENARIO, 1)}: the {complaint}"):
        build(tmp_path / "world", tmp_path / "mini" / "build.py")
