"""An evaluation's folder: nothing that was played is lost, and nothing is played twice."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from other_values import with_others
from rich.console import Console

from eh_gym.errors import ConfigError, UserCodeError, WorkerDied
from envs.cabinet.env import CabinetEnv
from harness.evaluation.config_from_run import config_from_run
from harness.evaluation.folder import EvaluationFolder, evaluation_of
from harness.evaluation.result import summarise
from harness.evaluation.run import _plan, run
from harness.records.episode_log import read_episodes
from harness.records.run_folder import prepare
from harness.settings.evaluate import EvaluateConfig
from harness.settings.section import Changes, changed

SMALL = changed(EvaluateConfig(), policy="random", tasks=4, rollouts=3, horizon=6)
QUIET = Console(quiet=True)


def evaluate(out, **settings):
    return run(changed(SMALL, out=out, **settings), QUIET)


def lines(out):
    return read_episodes(out / "episodes" / "evaluation.jsonl")


def cut(out, episodes):
    path = out / "episodes" / "evaluation.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:episodes]) + kept[episodes][:40])
    (out / "result.json").unlink(missing_ok=True)


def test_the_same_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "harness.rollout.episode.time", SimpleNamespace(perf_counter=(n * n for n in itertools.count()).__next__)
    )
    whole = evaluate(None)
    assert evaluate(tmp_path / "out") == whole
    before = lines(tmp_path / "out")
    cut(tmp_path / "out", 5)
    assert evaluate(tmp_path / "out") == whole
    assert lines(tmp_path / "out") == before
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["successes"] == whole.successes
    monkeypatch.setattr("harness.evaluation.play.play_script", lambda *_, **__: pytest.fail("played again"))
    assert evaluate(tmp_path / "out") == whole


def test_episodes_are_counted_in_the_order_of_the_requests(tmp_path, monkeypatch):
    counted = []
    plain = summarise
    monkeypatch.setattr(
        "harness.evaluation.run.summarise",
        lambda episodes, **more: (
            counted.append([(t["seed"], t["length"]) for t in episodes]) or plain(episodes, **more)
        ),
    )
    evaluate(tmp_path / "out", policy="random", horizon=20)
    path = tmp_path / "out" / "episodes" / "evaluation.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    evaluate(tmp_path / "out", policy="random", horizon=20)
    assert counted[1] == counted[0]


def test_more_tasks_and_rollouts_play_what_is_missing(tmp_path):
    evaluate(tmp_path / "out", tasks=3, rollouts=2)
    first = lines(tmp_path / "out")
    assert evaluate(tmp_path / "out") == evaluate(None)
    assert lines(tmp_path / "out")[:6] == first
    assert len(lines(tmp_path / "out")) == 12
    assert evaluate(tmp_path / "out", tasks=3, rollouts=2) == evaluate(None, tasks=3, rollouts=2)  # of those alone


@pytest.mark.parametrize("change", [{"horizon": 7}, {"seed": 1}, {"policy": "expert"}, {"split": "train"}])
def test_other_settings_are_refused(tmp_path, change):
    evaluate(tmp_path / "out")
    with pytest.raises(ConfigError, match=rf"{next(iter(change))} .*--out"):
        evaluate(tmp_path / "out", **change)
    fewer = with_others(SMALL, Changes.EPISODES, Changes.SETUP, Changes.MACHINE)  # no episode depends on these
    alone, again = (run(replace(fewer, out=tmp_path / name), QUIET) for name in ("alone", "out"))
    assert alone == again


def test_a_folder_in_use_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.records.files._PATIENCE_S", 0)
    first = EvaluationFolder(tmp_path / "out", {})
    with pytest.raises(ConfigError, match=r"another process"):
        EvaluationFolder(tmp_path / "out", {})
    first.close()
    EvaluationFolder(tmp_path / "out", {}).close()


def test_the_result_of_a_smaller_evaluation_goes_with_the_first_new_episode(tmp_path):
    evaluate(tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.evaluation.run.summarise", lambda *_, **__: pytest.fail("killed here"))
        with pytest.raises(pytest.fail.Exception):
            evaluate(tmp_path / "out", tasks=5)
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"no evaluation.*--out"):
        evaluate(tmp_path)
    with pytest.raises(ConfigError, match="holds no evaluation"):
        evaluate(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "notes.txt").unlink()
    for name in (".lock", "settings.json.part"):  # what a kill before the settings leaves
        (tmp_path / name).touch()
    assert evaluate(tmp_path).episodes == 12


def test_what_the_environment_failed_is_played_again(tmp_path, monkeypatch):
    whole = evaluate(None)

    with monkeypatch.context() as patch:
        patch.setattr(CabinetEnv, "step", Mock(side_effect=WorkerDied("the engine died")))
        with pytest.raises(UserCodeError, match=r"all 12 episodes .*: the engine died"):
            evaluate(tmp_path / "out")
    assert evaluate(tmp_path / "out") == whole


def test_a_run_is_known_by_its_versions_beside_its_settings(quick):
    out = prepare(changed(quick, out=quick.out.with_name("my run")))
    with pytest.raises(ConfigError, match=r"has no model yet; .* --resume '/.*/my run'$"):
        config_from_run(out)
    (out / "versions.json").unlink()
    with pytest.raises(ConfigError, match=r"not the folder of a run.* --policy '/.*/my run'$"):
        config_from_run(out)


def test_an_export_takes_an_evaluation_of_its_environment(tmp_path):
    evaluate(tmp_path / "out")
    kept = evaluation_of(tmp_path / "out", "EH-Cabinet")
    assert len(kept.first_of_each_task()) == 4
    assert (kept.title, kept.environment_args) == ("random on EH-Cabinet-v0, all", {"split": "all"})
    for folder, said in (("out", "EH-Cabinet-v0.* for EH-BFCL"), ("", "holds no evaluation")):
        with pytest.raises(ConfigError, match=said):
            evaluation_of(tmp_path / folder, "EH-BFCL")


def test_a_split_is_whole_if_no_task_was_left_out(monkeypatch):
    monkeypatch.setattr("harness.evaluation.play.tasks_of", lambda _: [f"test-{i}" for i in range(8)])
    for more, whole in (({}, True), ({"every": 2}, False), ({"tasks": 7}, False), ({"tasks": 8}, True)):
        assert _plan(changed(EvaluateConfig(), policy="expert", **more), None).whole_split is whole
