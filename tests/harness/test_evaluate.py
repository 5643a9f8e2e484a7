import json
import signal
from dataclasses import replace
from unittest import mock

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from eh_gym.errors import ConfigError, WorkerDied
from envs.cabinet.env import CabinetEnv
from harness.evaluate import main
from harness.evaluation.config_from_run import config_from_run
from harness.evaluation.folder import read_evaluation
from harness.evaluation.run import evaluate_policy, run
from harness.records.episode_log import read_episodes
from harness.records.run_folder import prepare
from harness.report.tables import evaluation_table
from harness.rollout.rollout import rollout
from harness.settings.evaluate import EvaluateConfig
from harness.settings.grpo import from_recipe
from harness.settings.section import changed, flat


def quiet(**settings):
    return run(changed(EvaluateConfig(), **settings), Console(quiet=True))


def test_a_reset_that_fails_costs_an_expert_s_evaluation_one_episode(monkeypatch):
    plain, third = CabinetEnv.reset, CabinetEnv("all").task_ids[2]

    def reset(self, *, seed=None, options=None):
        if options == {"task_id": third}:
            raise WorkerDied("gone")
        return plain(self, seed=seed, options=options)

    monkeypatch.setattr(CabinetEnv, "reset", reset)
    result = quiet(policy="expert", tasks=4)
    assert (result.successes, result.episodes, result.environment_errors) == (3, 3, 1)


@pytest.mark.parametrize("env", ["EH-Cabinet-v0", "EH-CabinetLocked-v0"])
def test_the_expert_solves_everything_and_the_empty_agent_nothing(env):
    expert = quiet(env=env, policy="expert", tasks=40)
    assert (expert.mean_at_k, expert.best_at_k, expert.steps_per_optimum) == (1.0, 1.0, 1.0)
    empty = quiet(env=env, policy="empty", tasks=10, horizon=7)
    assert (expert.rollouts, empty.rollouts, quiet(env=env, policy="random", tasks=1).rollouts) == (1, 1, 8)
    assert (empty.successes, empty.truncated, empty.length_mean) == (0, 1.0, 7.0)
    assert empty.length_success_mean is None


def test_a_model_is_loaded_from_its_folder_and_measured_the_same_twice(trained, tmp_path, capsys):
    trained.save(tmp_path / "model")
    settings = {"policy": str(tmp_path / "model"), "tasks": 6, "rollouts": 3, "max_action_tokens": 6}
    first, second = quiet(**settings, slots=18), quiet(**settings, slots=18, out=tmp_path / "out")
    assert first == second
    assert "Loading weights" not in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["mean_at_k"] == first.mean_at_k
    assert (first.tasks, first.rollouts) == (6, 3)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")  # as a run does that goes on
    with pytest.raises(ConfigError, match=r"holds an evaluation with weights"):
        quiet(**settings, slots=18, out=tmp_path / "out")


def test_a_run_gives_its_environment_k_and_limits_and_flags_override_them(trained, tmp_path, capsys):
    wanted = {"env": "EH-CabinetLocked-v0:2,EH-Cabinet-v0:1", "eval_split": "dev", "eval_horizon": 20, "k0": 9}
    folder = prepare(changed(from_recipe("quickstart"), out=tmp_path / "run", temperature=0.5, **wanted))
    with pytest.raises(SystemExit, match="2"):
        main([str(folder)])
    assert "has no model yet; resume it: python -m harness.grpo --resume" in " ".join(capsys.readouterr().out.split())
    trained.save(folder / "model")
    own = flat(config_from_run(folder))
    assert (own["env"], own["split"], own["horizon"]) == ("EH-CabinetLocked-v0,EH-Cabinet-v0", "dev", 20)
    assert (own["max_action_tokens"], own["temperature"], own["policy"]) == (6, 0.5, str(folder / "model"))
    main([str(folder), "--env", "EH-Cabinet-v0", "--horizon", "3", "--tasks", "2", "--rollouts", "1"])
    plan, _, said = capsys.readouterr().out.partition("\n")
    assert plan.startswith(f"from {folder}: policy {folder}/model, split dev, ")
    assert "max_action_tokens 6" in plan
    assert "env EH" not in plan
    assert "K = 3" in " ".join(said.split())
    assert evaluate_policy(folder, tasks=1, rollouts=1, show=False).tasks == 1
    with pytest.raises(SystemExit, match="2"):
        main([str(folder / "model")])
    assert "give --policy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--env", "Nope-v0"], "Nope-v0"),
        (["--env", "CartPole-v1"], "split"),
        (["--env", "gymnasium.envs.toy_text.blackjack:BlackjackEnv"], "BlackjackEnv has no task_ids; add"),
        (["--env-args", '{"foo": 1}'], "foo"),
        (["--official"], "EH-BFCL-v0 and EH-AppWorld-v0"),
        (["--official", "--env", "EH-BFCL-v0", "--env-args", '{"categories": ["base"]}'], '{"prompt": "official"}'),
        (["--policy", "/no/such/model"], "/no/such/model"),
        (["--policy", "openai"], "--model"),
        (["--policy", "openai", "--model", "m", "--max-context", "9"], "--max-context is not for"),
        (["--base-url", "http://h/v1"], "--base-url is for"),
        (["--tasks", "1", "--out", f"{__file__}/x"], "--out"),
    ],
)
def test_wrong_flags_end_the_command(words, names, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    said = capsys.readouterr()  # by us or by tyro
    assert names in " ".join((said.out + said.err).split())


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--env", "EH-BFCL-v0"], ("all", {"prompt": "official"}, 200, 0.0, None)),
        (
            ["--env", "EH-BFCL-v0", "--horizon", "50", "--temperature", "1"],
            ("all", {"prompt": "official"}, 50, 1.0, None),
        ),
        (["--env", "eh_gym:EH-AppWorld-v0", "--rollouts", "8"], ("test_normal", {}, 50, 0.0, 8)),
    ],
)
def test_official_gives_the_benchmark_s_own_settings_as_defaults(words, settings, monkeypatch):
    asked = []
    monkeypatch.setattr("harness.evaluation.run.run", lambda config, *_, **__: asked.append(config))
    main(["--official", *words])
    evaluate_policy("m", words[1], official=True, every=2)
    by_flags, by_name = map(flat, asked)
    assert settings == tuple(by_flags[n] for n in ("split", "env_args", "horizon", "temperature", "rollouts"))
    assert (by_name["split"], by_name["env_args"], by_name["temperature"]) == (*settings[:2], 0.0)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--tasks 2 --every 3 --horizon 9", ["--tasks", "--every", "--horizon"]),
        ("--split test --tasks 1", ["--tasks", "--split"]),
        ("--no-official --tasks 1", []),
    ],
)
def test_a_score_that_is_not_official_says_so(words, flags, monkeypatch, tmp_path, capsys):
    about = replace(CabinetEnv.description, official={"split": "dev", "horizon": 50})
    monkeypatch.setattr(CabinetEnv, "description", about)
    main(["--official", *words.split(), "--out", str(tmp_path)])
    texts = capsys.readouterr().out, str(evaluation_table([read_evaluation(tmp_path)], "", first=0).rows)
    for text in texts:
        assert ("not official: " + ", ".join(flags) in " ".join(text.split())) == bool(flags)
    assert json.loads((tmp_path / "result.json").read_text())["result"]["not_official"] == flags
    whole = changed(EvaluateConfig(official=True), split="dev", tasks=20_000, every=2)
    assert whole.departures(whole_split=True) == ()


@pytest.mark.usefixtures("signals_are_heard")
@pytest.mark.parametrize("kept", [True, False])
def test_a_stopped_lockstep_evaluation_keeps_what_ended(kept, trained, tmp_path, monkeypatch, capsys):
    plain, ended = Progress.advance, []

    def advance(*arguments):
        plain(*arguments)
        ended.append(arguments)
        if len(ended) == 2:
            signal.raise_signal(signal.SIGINT)

    trained.save(tmp_path / "model")
    out = ["--out", str(tmp_path / "out")] if kept else []
    words = ["--policy", str(tmp_path / "model"), "--tasks", "4", "--rollouts", "2", "--max-action-tokens", "6"]
    monkeypatch.setattr(Progress, "advance", advance)
    with pytest.raises(SystemExit, match="130"):
        main([*words, "--slots", "3", *out])
    assert ("same command again" if kept else "with --out") in capsys.readouterr().out.splitlines()[-1]
    if kept:
        assert len(read_episodes(tmp_path / "out" / "episodes" / "evaluation.jsonl")) == 2


def test_a_context_without_room_for_any_first_message_is_an_error(trained, tmp_path):
    trained.save(tmp_path / "model")
    settings = {"policy": str(tmp_path / "model"), "tasks": 2, "rollouts": 1, "max_action_tokens": 6, "horizon": 2}
    for _ in range(2):  # the second reads the episodes of the first
        with pytest.raises(ConfigError, match=r"--max-context"):
            quiet(**settings, max_context=3, out=tmp_path / "out")
    assert quiet(**settings, out=tmp_path / "out").length_mean > 0


def test_tasks_can_be_spread_over_the_split(tmp_path):
    quiet(policy="expert", every=5, tasks=3, out=tmp_path)
    played = read_episodes(tmp_path / "episodes" / "evaluation.jsonl")
    assert [line["task_id"] for line in played] == ["train-000000", "train-000005", "train-000010"]


@pytest.mark.parametrize(("smaller_than", "given", "threads"), [(0, None, None), (10**9, None, 1), (0, 3, 3)])
def test_the_way_of_playing_and_the_threads_are_the_flags_and_only_a_small_model_has_one_by_default(
    trained,
    tmp_path,
    monkeypatch,
    smaller_than,
    given,
    threads,
):
    chosen = []
    played = mock.Mock(side_effect=rollout)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr("harness.evaluation.play.rollout", played)
    monkeypatch.setattr("harness.machine.runtime._SMALL", smaller_than)
    trained.save(tmp_path)
    quick = {"tasks": 1, "rollouts": 1, "max_action_tokens": 6, "horizon": 1}
    quiet(policy=str(tmp_path), threads=given, rollout="streaming", **quick)
    assert chosen == ([] if threads is None else [threads])
    assert played.call_args.args[4].rollout == "streaming"
