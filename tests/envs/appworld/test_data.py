import pytest
from appworld_root import write_world

from eh_gym.errors import EHError
from envs.appworld import data


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "appworld"


@pytest.fixture
def installed():
    root = data.benchmark_dir() / "root-0"
    write_world(root, train=["a_1", "a_2", "b_1"], dev=["c_1"])
    return root


def test_the_tasks_come_in_appworlds_order_without_their_tags(installed):
    (installed / "data" / "datasets" / "train.txt").write_text("b_1\n a_2:hard \n\na_1\n")
    assert data.task_ids("train") == ("b_1", "a_2", "a_1")


@pytest.mark.parametrize("name", ["../secret_1", "a_1 x"])
def test_a_strange_id_is_refused(installed, name):
    (installed / "data" / "datasets" / "train.txt").write_text(f"a_1\n{name}\n")
    with pytest.raises(EHError, match="task's id"):
        data.task_ids("train")


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
    ("missing", "message"), [("datasets/dev.txt", "dev lists 0 tasks"), ("tasks/a_2/specs.json", r"a_2 .*specs\.json")]
)
def test_data_with_a_missing_file_fail_the_check_that_whole_data_pass(installed, missing, message):
    data.check_root(installed, {"train": 3, "dev": None})
    (installed / "data" / missing).unlink()
    with pytest.raises(EHError, match=message):
        data.check_root(installed, {"train": 3, "dev": None})
