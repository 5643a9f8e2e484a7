"""The mini world: what is in it, that it is built the same again, and that an unsound task stops the build."""

import filecmp
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from envs.appworld import data
from envs.appworld.mini import task as mini_task
from envs.appworld.mini.evaluation import Change, evaluation
from envs.appworld.mini.world import APPS

GENERATOR = "simple_note_line_added"  # the cheapest to play


@pytest.fixture(scope="module")
def roots(appworld_python):
    return data.roots("mini")


@pytest.fixture(scope="module")
def tasks(roots):
    """Id -> what the judge's folder says about a task."""
    found = {}
    for identifier in data.task_ids("mini"):
        folder = roots.judge / "data" / "tasks" / identifier
        truth = folder / "ground_truth"
        found[identifier] = {
            **json.loads((folder / "specs.json").read_text()),
            **json.loads((truth / "metadata.json").read_text()),
            "steps": json.loads((truth / "steps.json").read_text()),
            "wrong": json.loads((truth / "wrong.json").read_text()),
            "answer": json.loads((truth / "answer.json").read_text()),
            "required_apps": json.loads((truth / "required_apps.json").read_text()),
        }
    return found


@pytest.fixture
def build(appworld_python, tmp_path):
    """Runs the builder, by default the installed one; returns the finished process."""

    def run(dest, *options, builder=data.BUILDER):
        command = [str(appworld_python), "-B", str(builder), str(dest), *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)

    return run


def test_every_generator_has_three_tasks_and_every_difficulty_and_app_is_there(tasks):
    generators = Counter(identifier.split("_")[0] for identifier in tasks)
    assert len(generators) >= 8
    assert set(generators.values()) == {3}
    assert set(generators) == {mini_task.task_id(name, 1).split("_")[0] for name in mini_task.generators()}
    assert min(Counter(task["difficulty"] for task in tasks.values()).values()) >= 6
    assert {task["difficulty"] for task in tasks.values()} == {1, 2, 3}
    assert {app for task in tasks.values() for app in task["required_apps"]} == set(APPS)


def test_variants_differ_and_instructions_name_no_answer(tasks):
    assert len({(task["instruction"], task["supervisor"]["email"]) for task in tasks.values()}) == len(tasks)
    for task in tasks.values():
        if task["answer"] is not None:
            assert str(task["answer"]) not in re.findall(r"[\d.]+", task["instruction"])


def test_what_the_agent_may_see_holds_no_ground_truth(roots, tasks):
    files = [path for path in roots.agent.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if "ground_truth" in path.parts]
    assert {path.parent.name for path in files if path.name == "specs.json"} == set(tasks)
    # Nothing of a solution or an evaluation under another name, either.
    for path in files:
        assert b"def evaluate(" not in path.read_bytes(), path
        assert b"complete_task(answer=" not in path.read_bytes(), path


@pytest.mark.campaign
def test_a_second_build_gives_the_same_bytes(build, roots, tmp_path):
    made = build(tmp_path / "again", "--only", GENERATOR)
    assert made.returncode == 0, made.stderr
    first, second = roots.judge / "data", tmp_path / "again" / "data"
    built = {path.relative_to(second) for path in second.rglob("*") if path.is_file()}
    assert len([path for path in built if path.name == "specs.json"]) == 3
    expected = {
        path.relative_to(first)
        for part in ("base_dbs", "api_docs", *(f"tasks/{mini_task.task_id(GENERATOR, number)}" for number in (1, 2, 3)))
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
        ("""('"append"', '"prepend"')""", """('"append"', '"append"')""", "the wrong solution 'wrong' passes"),
        ("{note.content}\\n{line}", "{note.content}, {line}", "the reference solution fails"),
    ],
)
def test_an_unsound_task_stops_the_build_and_leaves_nothing(build, roots, tmp_path, old, new, complaint):
    shutil.copytree(data.BUILDER.parent, tmp_path / "mini", ignore=shutil.ignore_patterns("__pycache__"))
    generator = tmp_path / "mini" / "generators" / f"{GENERATOR}.py"
    source = generator.read_text()
    assert old in source
    generator.write_text(source.replace(old, new))
    made = build(
        tmp_path / "world",
        "--only",
        GENERATOR,
        "--base",
        roots.judge,
        "--processes",
        1,
        builder=tmp_path / "mini" / "build.py",
    )
    assert made.returncode == 1
    assert f"Unsound: {mini_task.task_id(GENERATOR, 1)}: {complaint}" in made.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mini"]


def test_the_build_does_not_touch_a_folder_with_something_in_it(build, tmp_path):
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "mine.txt").write_text("kept")
    made = build(tmp_path / "world")
    assert made.returncode == 2
    assert "not empty" in made.stderr
    assert (tmp_path / "world" / "mine.txt").read_text() == "kept"


def test_an_evaluation_allows_only_the_kinds_of_change_that_it_lists():
    code = evaluation([Change("phone.Alarm", "updated", [{"id": 1, "time": "06:00"}]), Change("venmo.User", "added")])
    compile(code, "evaluation.py", "exec")
    assert "assert only these models have changed: phone.Alarm, venmo.User." in code
    assert "assert no phone.Alarm has been added or removed." in code
    assert "assert no venmo.User has been updated or removed." in code
    with pytest.raises(AssertionError, match="two sorts"):
        Change("phone.Alarm", "updated", [{"id": 1, "time": "06:00"}, {"id": 2}])
