import json
import shutil

import pytest
from glossary import check_glossary
from quiet_run import metrics_of
from quiet_run import run as run_in

from harness.evaluate import main as evaluate
from harness.records.episode_log import read_episodes
from harness.settings.grpo import from_recipe
from harness.settings.section import changed

PLAIN, LOCKED = "EH-Cabinet-v0", "EH-CabinetLocked-v0"


@pytest.fixture
def mixed(quick, own_cache):
    few = {"updates": 3, "tasks_per_update": 6, "eval_tasks": 8, "eval_every": 2}
    start = {"warm_start.max_batches": 150, "warm_start.polish_batches": 0}
    return changed(quick, env=f"{PLAIN}:2,{LOCKED}", alpha=1.0, **few, **start)


def run(config, folder, *, resume=False):
    config = changed(config, out=folder)
    evaluations = run_in(config, resume=resume)
    return metrics_of(config), evaluations


def test_a_run_has_the_shares_the_metrics_and_a_k_of_each_also_resumed(mixed, tmp_path):
    rows, evaluations = run(mixed, tmp_path / "a")
    for row in rows:
        check_glossary(row)
        assert (row[f"rollout/episodes_of/{PLAIN}"], row[f"rollout/episodes_of/{LOCKED}"]) == (16, 8)
        assert row["tokens/update"] == row[f"tokens/update_of/{PLAIN}"] + row[f"tokens/update_of/{LOCKED}"]
        of_both = (2 * row[f"rollout/success_of/{PLAIN}"] + row[f"rollout/success_of/{LOCKED}"]) / 3
        assert row["rollout/success"] == pytest.approx(of_both)
    ks = [(row[f"horizon/k_of/{PLAIN}"], row[f"horizon/k_of/{LOCKED}"]) for row in rows]
    assert any(plain != locked for plain, locked in ks), "each should follow its own successes"
    assert rows[-1]["horizon/k"] == max(ks[-2])
    episodes = read_episodes(tmp_path / "a" / "episodes" / "update-000002.jsonl")
    own = {PLAIN: ks[-2][0], LOCKED: ks[-2][1]}
    assert {(e["task_id"].split("/")[0], e["horizon"]) for e in episodes} == set(own.items())
    parts = {part["name"]: part for part in evaluations["after"]["sampled"]["parts"]}
    assert {name: part["tasks"] for name, part in parts.items()} == {PLAIN: 4, LOCKED: 4}
    assert f"evaluation/mean_at_k_of/{LOCKED}" in rows[1]

    for checkpoint in sorted((tmp_path / "a" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(checkpoint)
    (tmp_path / "a" / "evaluation.json").unlink()
    resumed, again = run(mixed, tmp_path / "a", resume=True)
    assert resumed == rows
    assert json.dumps(again) == json.dumps(evaluations)


def test_names_and_evaluations_know_several(capsys):
    both = changed(from_recipe("quickstart"), env=f"{PLAIN}:3,EH-BFCL-v0")
    assert both.environment.name == f"{PLAIN}-3+EH-BFCL-v0"
    evaluate(["--env", f"{PLAIN},{LOCKED}", "--tasks", "6"])
    shown = capsys.readouterr().out
    assert "6/6" in shown
    assert f"environment {LOCKED}" in shown
