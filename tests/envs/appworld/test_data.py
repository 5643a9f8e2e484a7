import json
import os
import re
import shutil
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs.appworld import data

ANSWERS = ("ground_truth/answer.json", "ground_truth/evaluation.py", "ground_truth/solution.py", "notes.txt")


def write_world(root, **splits):
    """The files of a judge's root, their content of no use."""
    files = {
        "data/version.txt": "0.1.0\n",
        "data/base_dbs/spotify.db": "x",
        "data/api_docs/standard/spotify.json": "{}",
    }
    files["data/base_dbs/README"] = "x"
    for split, tasks in splits.items():
        files[f"data/datasets/{split}.txt"] = "\n".join(tasks) + "\n"
        for task in tasks:
            files[f"data/tasks/{task}/specs.json"] = json.dumps({"db_version": "0.1.0"})
            files[f"data/tasks/{task}/dbs/supervisor.jsonl"] = ""
            for name in ANSWERS:
                files[f"data/tasks/{task}/{name}"] = "42"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "appworld"


@pytest.fixture
def installed():
    """The judge's folder of an installed benchmark."""
    return write_world(data.benchmark_dir() / "judge-0", train=["a_1", "a_2", "b_1"], dev=["c_1"])


@pytest.fixture
def agent(installed):
    """The agent's folder."""
    data.write_agent_root(installed, data.benchmark_dir() / "agent")
    return data.benchmark_dir() / "agent"


@pytest.fixture
def mini():
    return write_world(data.mini_dir() / "judge", mini=["m_1", "m_2"])


def test_the_judges_folder_gets_a_name_that_nobody_can_guess(mini):
    data.hide(mini.parent)
    (hidden,) = mini.parent.iterdir()
    assert re.fullmatch(r"judge-[0-9a-f]{32}", hidden.name)
    assert data.roots("mini").judge == hidden
    assert data.task_ids("mini") == ("m_1", "m_2")


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: data.roots("test"), ConfigError, "train, dev, test_normal, test_challenge, mini"),
        (lambda: data.task_ids("test_normal"), MissingBackendError, "'test_normal'"),
        (lambda: data.reference("train", "c_1"), ConfigError, "'c_1'.*'train'"),
    ],
)
def test_what_is_not_there_is_named(installed, ask, error, message):
    with pytest.raises(error, match=message):
        ask()


def test_a_missing_benchmark_names_every_way_to_it(cache):
    with pytest.raises(MissingBackendError, match=r"EH_APPWORLD_DATA_URL.*'mini'"):
        data.task_ids("dev")
    assert not cache.exists()


def test_an_installed_benchmark_and_the_mini_world_are_apart(installed, mini):
    assert data.roots("mini") == data.Roots(mini, mini.parent / "agent", data.mini_dir().name)
    assert data.roots("dev") == data.Roots(installed, installed.parent / "agent", "benchmark-0.1.0")
    assert (data.task_ids("mini"), data.task_ids("dev")) == (("m_1", "m_2"), ("c_1",))


def test_the_tasks_come_in_appworlds_order_without_their_tags(installed):
    (installed / "data" / "datasets" / "train.txt").write_text("b_1\n a_2:hard \n\na_1\n")
    assert data.task_ids("train") == ("b_1", "a_2", "a_1")


@pytest.mark.parametrize("name", ["../secret_1", "a", "a/1_1", "a_1 x"])
def test_a_strange_id_is_refused(installed, name):
    (installed / "data" / "datasets" / "train.txt").write_text(f"a_1\n{name}\n")
    with pytest.raises(EHError, match="task's id"):
        data.task_ids("train")


def test_the_agents_half_holds_no_answer(agent):
    names = sorted(p.relative_to(agent).as_posix() for p in agent.rglob("*") if p.is_file())
    tasks = [
        f"data/tasks/{t}/{f}" for t in ("a_1", "a_2", "b_1", "c_1") for f in ("dbs/supervisor.jsonl", "specs.json")
    ]
    shared = ["version.txt", "datasets/train.txt", "datasets/dev.txt", "base_dbs/spotify.db", "base_dbs/README"]
    assert names == sorted([*tasks, *(f"data/{f}" for f in shared), "data/api_docs/standard/spotify.json"])
    assert not [path for path in agent.rglob("*") if path.is_symlink()]


def test_where_files_cannot_be_linked_they_are_copied(installed, monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    agent = tmp_path / "agent"
    data.write_agent_root(installed, agent)
    source = installed / "data" / "tasks" / "a_1" / "specs.json"
    copied = agent / "data" / "tasks" / "a_1" / "specs.json"
    assert copied.read_text() == source.read_text()
    assert copied.stat().st_ino != source.stat().st_ino


def test_a_reference_is_the_recorded_steps_or_the_solutions_code(installed):
    truth = installed / "data" / "tasks" / "a_1" / "ground_truth"
    canary = "# Canary String: appworld:abc\n"
    (truth / "solution.py").write_text(f"{canary}\ndef solution(apis, requester):\n    pass\n")
    code = "requester.raise_on_failure = False\ndef solution(apis, requester):\n    pass\nsolution(apis, requester)"
    assert data.reference("train", "a_1") == [code]
    (truth / "compiled_solution.py").write_text("def solution(apis, requester):\n    return 1\n")
    [compiled] = data.reference("train", "a_1")
    assert "return 1" in compiled
    (truth / "steps.json").write_text('["x = 1", "print(x)"]')
    assert data.reference("train", "a_1") == ["x = 1", "print(x)"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("base_dbs/spotify.db", r"base_dbs/\*\.db"),
        ("api_docs/standard/spotify.json", "missing or empty"),
        ("datasets/dev.txt", "dev lists 0 tasks"),
        ("tasks/a_2/specs.json", r"a_2 .*specs\.json"),
        ("tasks/a_2/dbs/supervisor.jsonl", r"a_2 .*supervisor\.jsonl"),
        ("tasks/a_2/ground_truth/evaluation.py", r"a_2 .*evaluation\.py"),
    ],
)
def test_data_with_a_missing_file_fail_the_check_that_whole_data_pass(installed, missing, message):
    data.check_root(installed, {"train": 3, "dev": None})
    (installed / "data" / missing).unlink()
    with pytest.raises(EHError, match=message):
        data.check_root(installed, {"train": 3, "dev": None})


@pytest.mark.parametrize("specs", ['{"db_version": "0.2.0"}', "{}"])
def test_data_of_another_version_fail_the_check(installed, specs):
    (installed / "data" / "tasks" / "b_1" / "specs.json").write_text(specs)
    with pytest.raises(EHError, match=r"0\.1\.0 .*b_1"):
        data.check_root(installed, {"train": 3})


def test_the_mini_world_of_other_sources_is_another(tmp_path, monkeypatch):
    folder = tmp_path / "mini"
    shutil.copytree(Path(data.BUILDER).parent, folder)
    monkeypatch.setattr(data, "BUILDER", folder / "build.py")
    first = data.mini_dir()
    (folder / "__pycache__").mkdir(exist_ok=True)
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "notes.md").write_text("x")
    (folder / ".ruff_cache").mkdir()  # what tools leave
    (folder / ".ruff_cache" / "CACHEDIR.TAG").write_text("x")
    assert data.mini_dir() == first
    with (folder / "content.py").open("a") as file:
        file.write("# changed\n")
    second = data.mini_dir()
    assert second != first
    (folder / "content.py").rename(folder / "other.py")
    assert data.mini_dir() not in (first, second)
