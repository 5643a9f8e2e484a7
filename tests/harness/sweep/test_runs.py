"""Which runs a report is about, how they belong together, and what is said of folders that are none."""

import json

import pytest
from made_up_runs import write_run, write_sweep

from eh_gym.errors import ConfigError
from harness.settings.grpo import GRPOConfig
from harness.settings.section import Changes, marks
from harness.sweep.runs import all_runs, read_suites


def test_runs_of_a_sweep_that_are_missing_or_on_their_way_are_said(sweep):
    out = sweep(seeds=2, updates=3, only=("ema",))
    (out / "runs" / "ema-1-seed0" / "config.json").unlink()
    (out / "runs" / "ema-1-seed1" / "metrics.jsonl").unlink()
    for name in ("ema-1-seed1", "ema-2-seed0", "ema-4-seed0"):
        (out / "runs" / name / "evaluation.json").unlink()
    log = out / "runs" / "ema-4-seed0" / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-9])  # killed while it wrote the last of three lines
    (suite,) = read_suites([out])
    assert suite.missing == [
        "α=0.1, seed 0: not begun",
        "α=0.1, seed 1: no metrics yet",
        "α=0.2, seed 0: not evaluated yet",
        "α=1, seed 0: 2 of 3 updates",
    ]
    assert [len(arm.runs) for arm in suite.arms] == [2, 1, 2, 2, 2]
    assert [len(arm.ended) for arm in suite.arms] == [2, 0, 1, 2, 1]  # those that have ended


def test_a_run_that_its_program_ended_early_has_ended(tmp_path):
    folder = write_run(tmp_path / "run", updates=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "updates": 60}))
    assert not read_suites([folder])[0].missing


def test_a_run_that_two_suites_share_is_one(sweep):
    out = sweep(seeds=1, updates=3, only=("ema", "headroom"))
    manifest = out / "suites" / "ema.json"
    said = json.loads(manifest.read_text())
    said["arms"][0]["runs"] = [{"seed": 0, "folder": "../runs/headroom-2-seed0"}]
    manifest.write_text(json.dumps(said))
    runs = all_runs(read_suites([out, out / "runs" / "headroom-2-seed0"]))
    names = [run.folder.name for *_, run in runs]
    assert names.count("headroom-2-seed0") == 1
    assert len(names) == 5 + 4


NO_ARM = [name for name, what in marks(GRPOConfig).items() if what not in (Changes.RESULT, Changes.EPISODES)]


def test_runs_are_put_together_by_the_settings_in_which_they_differ(tmp_path):
    folders = [
        write_run(tmp_path / f"{wrapper}-{k0}-{seed}", updates=2, wrapper=wrapper, k0=k0, kl_coef=kl_coef, seed=seed)
        for wrapper, k0, kl_coef in (("elastic", 10, 0.0), ("elastic", 50, 0.0), ("fixed", 50, 0.1))
        for seed in (0, 1)
    ]
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        elsewhere = dict.fromkeys(NO_ARM, folder.name) | {"seed": config["seed"]}
        if folder.name == "elastic-10-0":  # an older run
            config["environment"]["agent_sampling"] = "run"
            del config["loss"]["kl_coef"]
        (folder / "config.json").write_text(json.dumps(config | elsewhere))
    other = write_run(tmp_path / "other", updates=2, env="EH-BFCL-v0")
    first, second = read_suites([*folders, other])
    assert [(arm.label, [run.seed for run in arm.runs]) for arm in first.arms] == [
        ("elastic, k0=10, kl_coef=0.0", [0, 1]),
        ("elastic, k0=50, kl_coef=0.0", [0, 1]),
        ("fixed, k0=50, kl_coef=0.1", [0, 1]),
    ]
    assert [(arm.label, len(arm.runs)) for arm in second.arms] == [("elastic", 1)]
    assert (first.env, second.env) == ("EH-Cabinet-v0", "EH-BFCL-v0")


def test_a_second_run_of_a_setting_and_seed_is_an_arm_of_its_own(tmp_path):
    folders = [write_run(tmp_path / name, updates=2, sampler=name) for name in ("transformers", "vllm")]
    (suite,) = read_suites(folders)
    assert [arm.label for arm in suite.arms] == ["elastic", f"elastic ({folders[1]})"]


def test_a_folder_of_sweeps_stands_for_all_of_them(tmp_path):
    for env in ("b", "a"):
        write_sweep(tmp_path / env, seeds=1, updates=2, only=("pretrained",))
    assert [suite.source for suite in read_suites([tmp_path])] == [str(tmp_path / "a"), str(tmp_path / "b")]


def write_config(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no folder .*nothing"),
        (lambda p: p.mkdir(), r"nothing .*config\.json"),
        (lambda p: write_config(p, {"model_type": "qwen2"}), r"nothing is not a run: its config\.json is another"),
        (lambda p: write_run(p / "inside", updates=1), r"config\.json.*nothing/\*"),
        (lambda p: (p / "suites").mkdir(parents=True), "nothing has no suite"),
    ],
)
def test_a_folder_without_a_run_is_refused(tmp_path, make, message):
    make(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=message):
        read_suites([tmp_path / "nothing"])
