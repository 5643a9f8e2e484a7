"""A sweep skips what is done, goes on with what was broken off, survives a failure and a kill; flags and tables."""

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.records.files import read_object
from harness.records.metrics import read_metrics
from harness.settings.grpo import from_recipe
from harness.settings.section import changed, flat
from harness.sweep.__main__ import main
from harness.sweep.runs import read_suites
from harness.sweep.suites import ARMS
from harness.sweep.sweep import Sweep, parse, print_results, read_tables, sweep

STAND_IN = (sys.executable, str(Path(__file__).parents[1] / "stand_in_run.py"))
HELD = (sys.executable, str(Path(__file__).parents[1] / "held_run.py"))
TRAIN = changed(parse(["--suite", "ema"]).train, updates=3, eval_every=1)


def go(out, suite="ema", *arms, seeds=2):
    shown = StringIO()
    settings = Sweep(changed(TRAIN, out=out), suite="" if arms else suite, arm=arms, seeds=seeds, jobs=2)
    failed = sweep(settings, Console(file=shown, width=200), STAND_IN)
    return failed, shown.getvalue()


def starts(out):
    return {p.parent.name: len(p.read_text().splitlines()) for p in sorted(out.glob("runs/*/starts"))}


def test_a_sweep_runs_every_arm_and_seed_and_prints_the_tables(tmp_path):
    failed, shown = go(tmp_path)
    assert failed == []
    assert len(starts(tmp_path)) == 10  # 5 arms x 2 seeds
    for arm in read_object(tmp_path / "suites" / "ema.json")["arms"]:
        for run in arm["runs"]:
            config = json.loads((tmp_path / "suites" / run["folder"] / "config.json").read_text())
            elastic = config["horizon"]["elastic"]
            assert (config["seed"], elastic["alpha"], elastic["k0"]) == (run["seed"], arm["settings"]["alpha"], 10)
    begun = [line for line in shown.splitlines() if line.startswith("start")]
    assert begun == [
        f"start   ema α={alpha} seed {seed}" for seed in (0, 1) for alpha in ("0.05", "0.1", "0.2", "0.5", "1")
    ]
    assert "(10 of 10)" in shown
    assert "37.5 ± 17.7" in shown  # seeds 0.25 and 0.5
    assert "EMA coefficient" in shown


def test_finished_runs_are_skipped_and_suites_share_runs(tmp_path):
    go(tmp_path, seeds=1)
    _, shown = go(tmp_path, seeds=2)
    assert "5 done, 0 to continue, 5 to begin" in shown
    _, shown = go(tmp_path, "percentile", seeds=2)
    assert "2 done, 0 to continue, 10 to begin" in shown  # P90 is α=0.1
    assert set(starts(tmp_path).values()) == {1}
    _, shown = go(tmp_path, "percentile", seeds=2)
    assert "12 done" in shown
    assert "start " not in shown
    assert set(starts(tmp_path).values()) == {1}


def test_a_failed_run_is_reported_with_its_log_stops_no_other_and_is_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    failed, shown = go(tmp_path)
    assert len(failed) == 5
    assert all(name.endswith("-seed1") for name in failed)
    assert "FAILED  ema α=1 seed 1" in shown
    assert "the stand-in fails" in shown

    assert "5 of 10 runs failed" in shown
    [row] = [line for line in shown.splitlines() if "α=0.2" in line and "25.0" in line]
    assert "1" in row.split()[3]  # one run in the table
    monkeypatch.delenv("FAIL")
    failed, shown = go(tmp_path)
    assert failed == []
    assert "5 done, 5 to continue, 0 to begin" in shown
    resumed = [n for n, count in starts(tmp_path).items() if count == 2]
    assert len(resumed) == 5
    assert "starting at update 1" in (tmp_path / "logs" / f"{resumed[0]}.log").read_text()
    rows = read_metrics(tmp_path / "runs" / resumed[0] / "metrics.jsonl")
    assert [row["update"] for row in rows] == [0, 1, 2]


def test_suites_keep_the_clone_of_their_results_and_arms_have_the_quick_start_s():
    def clone(*words):
        return parse(words).train.warm_start.max_optimal_steps

    assert clone("--suite", "ema") == 9
    assert clone("--arm", "k0=10") == from_recipe("quickstart").warm_start.max_optimal_steps
    assert clone("--suite", "ema", "--warm-start.max-optimal-steps", "4") == 4
    assert clone("--suite", "ema", "--recipe", "smollm2") == 0


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ("", 10),
        ("--eval-every 0", 0),
        ("--eval-every=7", 7),
        ("--updates 40", 2),
        ("--updates 19", 0),  # too short
        ("--eval-tasks 0", 0),
        ("--max-staleness 1 --rollout streaming", 0),
    ],
)
def test_a_sweep_evaluates_during_training_if_it_can_unless_told_otherwise(words, every):
    real = ["--suite", "ema", "--recipe", "paper", "--model", "Qwen/Qwen2.5-7B-Instruct"]
    assert parse([*real, *words.split()]).train.evaluation.every == every


def test_arms_of_one_s_own_run_with_the_seeds_and_have_a_table(tmp_path):
    arms = ("k0=12", "k_max=60", "wrapper=fixed,k0=30", "wrapper=tti,stages=0:12,3:20,recompute=all")
    failed, shown = go(tmp_path, ARMS, *arms, seeds=2)
    assert failed == []
    assert "(8 of 8)" in shown
    assert "baseline's" in shown
    assert "final success in points from wrapper=fixed,k0=30, seed by seed" in shown
    narrow = StringIO()
    print_results(read_tables(tmp_path, [ARMS])[0], Console(file=narrow, width=80))
    assert max(len(line) for line in narrow.getvalue().splitlines() if line[:1] in "┏│└") <= 80
    assert "…" not in narrow.getvalue()
    assert "tokens/update ┃" in narrow.getvalue()
    configs = [flat(config) for _, config in Sweep(TRAIN, arm=arms).arms(ARMS).values()]
    assert [c["wrapper"] for c in configs] == ["elastic", "elastic", "fixed", "tti"]
    assert [c["eval_horizon"] for c in configs] == [60] * 4  # the largest K of any arm
    assert (configs[0]["k0"], configs[2]["k0"], configs[3]["stages"]) == (12, 30, {0: 12, 3: 20})
    assert [c["recompute"] for c in configs] == ["none", "none", "none", "all"]
    [suite] = read_suites([tmp_path])
    assert [(arm.label, arm.settings["wrapper"], arm.fixed_k) for arm in suite.arms][2] == (arms[2], "fixed", 30)
    _, shown = go(tmp_path, ARMS, "k0=12", "k0=13", "k_max=60", seeds=1)  # another arm beside two that have ended
    assert "2 done" in shown


@pytest.mark.parametrize(
    ("arm", "names"),
    [
        ("k00=10", '"k00=10": no flag --k00; did you mean --k0'),
        ("wrapper=fixd", "did you mean fixed"),
        ("wrapper=fixed,alpha=0.3", "--alpha is for --wrapper elastic"),
        ("wrapper=fixed,k0=80", "raise --eval-horizon"),
        ("k0", "settings with commas between"),
        ("seed=3", "every arm has the seeds"),
    ],
)
def test_a_wrong_arm_is_refused_before_any_run(arm, names, tmp_path):
    with pytest.raises(ConfigError, match=names):
        go(tmp_path / "out", ARMS, "k0=10", arm)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", "give --suite, or --arm for each arm"),
        ("--suite ema --arm k0=3", "give --suite, or --arm for each arm"),
        ("--suite saturation --k0 20", "--k0.*saturation"),
        ("--suite saturation --resume x", "--resume is for a single run"),
        ("--suite saturation --seeds 0", "seeds"),
        ("--suite saturation --threshold 50", "threshold"),
        ("--suite learnin", "no suite learnin; did you mean learning"),
    ],
)
def test_flags_that_no_sweep_takes_are_refused(words, names):
    with pytest.raises(ConfigError, match=names):
        parse(words.split())


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--env", "EH-Nope-v0"], "EH-Nope-v0"),
        (["--device", "cuda:1"], "CUDA_VISIBLE_DEVICES"),
        (["--env-workers", "ray", "--ranks", "2"], "--ray-address"),
    ],
)
def test_settings_that_no_run_can_have_end_a_sweep_before_its_first_run(tmp_path, capsys, words, names):
    with pytest.raises(SystemExit) as exit_:
        main(["--suite", "convergence", "--out", str(tmp_path), *words])
    assert exit_.value.code == 2
    assert names in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.campaign
def test_a_real_sweep_is_killed_and_goes_on(tmp_path, child_env, cache, monkeypatch):
    flags = "--arm delta=5 --arm delta=10 --arm delta=15 --seeds 1 --jobs 1 --updates 2 --tasks-per-update 2 "
    flags += "--group-size 2 --checkpoint-every 1 --eval-tasks 2 --eval-rollouts 1 --eval-every 1 "
    flags += "--warm-start.max-batches 2 --warm-start.episodes 20 --ranks 2"
    words = [*flags.split(), "--out", str(tmp_path)]
    code = "from harness.sweep.sweep import *; from rich.console import Console; "
    code += f"sweep(parse({words!r}), Console(), {HELD!r})"
    environment = {**child_env, "EH_CACHE_DIR": str(cache)}
    process = psutil.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)

    def under_way():
        begun = [p.parent for p in tmp_path.glob("runs/*/metrics.jsonl") if p.read_bytes().count(b"\n")]
        return [folder for folder in begun if not (folder / "evaluation.json").exists()]

    deadline = time.monotonic() + 600
    while not under_way():
        assert process.poll() is None, "the sweep failed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    children = process.children(recursive=True)
    assert len(children) >= 3  # torchrun and its ranks
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not psutil.wait_procs(children, timeout=120)[1]
    ended = {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/evaluation.json")}
    assert len(ended) < 3

    for name in ("EH_CACHE_DIR", "OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, environment[name])
    shown = StringIO()
    assert sweep(parse(words), Console(file=shown, width=200)) == []
    assert f"{len(ended)} done" in shown.getvalue()
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 3
    for folder in folders:
        metrics = read_metrics(folder / "metrics.jsonl")
        assert [row["update"] for row in metrics] == [0, 1]
        assert all(row["evaluation/mean_at_k"] is not None for row in metrics)
        assert folder.name not in ended or (folder / "evaluation.json").stat().st_mtime_ns == ended[folder.name]
    assert any("resumed at update" in p.read_text() for p in tmp_path.glob("logs/*.log"))
