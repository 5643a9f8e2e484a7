"""mean@k, best@k and their intervals; policies with and without a model; the command line."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from eh_gym.errors import ConfigError, WorkerDied
from envs.cabinet.env import CabinetEnv
from harness.evaluate import Evaluation, main, run
from harness.evaluation.play import evaluation_requests, held_out_tasks, play_policy
from harness.policy.policy import Policy
from harness.rollout.environment import Environments
from harness.rollout.rollout import rollout
from harness.run.episode_log import read_episodes
from harness.sampling.transformers import TransformersSampler
from harness.types.rules import Rules
from harness.types.trajectory import Trajectory


def quiet(**settings: Any) -> Any:
    return run(Evaluation(**settings), Console(quiet=True))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tasks": 0}, "tasks: expected >= 1, got 0; raise --tasks"),
        ({"tasks": -3}, "tasks: expected >= 1"),  # not: all but the last three
        ({"rollouts": 0}, "rollouts: expected >= 1"),
        ({"horizon": 0}, "horizon: expected >= 1"),
        ({"slots": 0}, "slots: expected >= 1"),
        ({"every": 0}, "every: expected >= 1, got 0; raise --every"),
        ({"temperature": 3.0}, "temperature: expected >= 0 and <= 2, got 3.0"),
        ({"env_args": "{bad"}, "env_args is not JSON"),
        ({"env_args": "[1]"}, "env_args must be a JSON object"),
        ({"env_args": '{"split": "train"}'}, "env_args has the split 'train'; give --split train instead"),
        ({"threads": -1}, "threads: expected >= 0, got -1"),
        (
            {"env": "EH-Cabinet-v0:3,EH-CabinetLocked-v0"},
            "so --env has no weights, got 'EH-Cabinet-v0:3,EH-CabinetLocked-v0'",
        ),
    ],
)
def test_bad_flags_are_refused_before_anything_is_loaded(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quiet(policy="/no/such/model", **flags)


def test_an_expert_has_no_token_ids_to_keep() -> None:
    with pytest.raises(ConfigError, match="--keep-tokens is for a model on this machine, got --policy expert"):
        quiet(policy="expert", keep_tokens=True)


def test_a_reset_that_fails_costs_an_expert_s_evaluation_one_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, resets = CabinetEnv.reset, []

    def reset(self: Any, **arguments: Any) -> Any:
        resets.append(arguments)
        if len(resets) == 2:
            raise WorkerDied("gone")
        return plain(self, **arguments)

    monkeypatch.setattr(CabinetEnv, "reset", reset)
    result = quiet(policy="expert", tasks=4)
    assert (result.successes, result.episodes, result.environment_errors) == (3, 3, 1)


@pytest.mark.parametrize("env", ["EH-Cabinet-v0", "EH-CabinetLocked-v0"])
def test_the_expert_solves_everything_and_the_empty_agent_nothing(env: str) -> None:
    expert = quiet(env=env, policy="expert", tasks=40)
    assert (expert.mean_at_k, expert.best_at_k, expert.steps_per_optimum) == (1.0, 1.0, 1.0)
    assert expert.rollouts == 1
    empty = quiet(env=env, policy="empty", tasks=10, horizon=7)
    assert (empty.successes, empty.truncated, empty.length_mean) == (0, 1.0, 7.0)
    assert empty.length_success_mean is None


def test_the_expert_at_a_small_k_reaches_the_ceiling_and_no_more() -> None:
    result = quiet(policy="expert", tasks=400, horizon=9)
    from envs.cabinet.env import success_ceiling

    low, high = result.mean_interval
    assert low <= success_ceiling(9) <= high


@pytest.mark.usefixtures("bfcl_python")
def test_bfcl_expert_and_empty_agent_on_the_test_split() -> None:
    assert quiet(env="EH-BFCL-v0", policy="expert", split="test").mean_at_k == 1.0
    assert quiet(env="EH-BFCL-v0", policy="empty", split="test", env_args='{"categories": ["base"]}').successes == 0


def test_a_model_is_loaded_from_its_folder_and_measured_the_same_twice(trained: Policy, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    settings = {"policy": str(tmp_path / "model"), "tasks": 6, "rollouts": 3, "max_action_tokens": 6}
    first, second = quiet(**settings, slots=18), quiet(**settings, slots=18, out=tmp_path / "out")
    assert first == second
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["mean_at_k"] == first.mean_at_k
    assert (first.tasks, first.rollouts) == (6, 3)


def test_greedy_episodes_of_a_task_are_alike(trained: Policy) -> None:
    played = play_policy(
        Environments("EH-Cabinet-v0", {"split": "test"}, slots=3, threads=0),
        TransformersSampler(trained.model),
        trained.chat,
        evaluation_requests(["test-000001"], rollouts=3, seed=0),
        Rules(0.0, max_action_tokens=6),
        horizon=20,
    )
    assert len({tuple(t.ids) for t in played}) == 1


def test_128_tasks_of_a_generated_split_are_played() -> None:
    assert len(held_out_tasks(Environments("EH-Cabinet-v0", {"split": "dev"}, slots=1, threads=0), None)) == 128


@pytest.mark.parametrize("mode", [None, "lockstep", "streaming"])
def test_the_way_of_playing_is_the_flag_s_and_lockstep_without_it(
    trained: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    modes = []

    def spy(*args: Any, **kwargs: Any) -> list[Trajectory]:
        modes.append(args[4].mode)
        return rollout(*args, **kwargs)

    monkeypatch.setattr("harness.evaluation.play.rollout", spy)
    trained.save(tmp_path / "model")
    settings = {} if mode is None else {"rollout": mode}
    result = quiet(policy=str(tmp_path / "model"), tasks=4, rollouts=2, max_action_tokens=6, slots=3, **settings)
    assert modes == [mode or "lockstep"]
    assert (result.tasks, result.rollouts, result.environment_errors) == (4, 2, 0)


def test_a_missing_model_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--policy", "/no/such/model", "--tasks", "1"])
    assert exit_.value.code == 2
    assert "no model can be loaded from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "Nope-v0"], 'Nope-v0 can\'t be made with --env-args {"split": "all"} (Environment `Nope` doesn\'t'),
        (["--env", "EH-BFCL-v1"], "version `v1` for environment `EH-BFCL` doesn't exist"),
        (["--env", "no_such_module:X-v0"], "(No module named 'no_such_module'"),
        (["--env", "CartPole-v1"], "got an unexpected keyword argument 'split'"),
        (["--env-args", '{"foo": 1}'], "got an unexpected keyword argument 'foo'"),
        (["--env-args", "x"], "env_args is not JSON"),
        (["--env-args", "[]"], "env_args must be a JSON object, got '[]'"),
        (["--tasks", "0"], "tasks: expected >= 1, got 0; raise --tasks"),
        (["--tasks", "-1"], "tasks: expected >= 1, got -1; raise --tasks"),
        (["--rollouts", "0"], "rollouts: expected >= 1, got 0; raise --rollouts"),
        (["--slots", "0"], "slots: expected >= 1, got 0; raise --slots"),
        (["--tasks", "1", "--out", f"{__file__}/x"], "can't be made (Not a directory); give another --out"),
    ],
)
def test_wrong_flags_end_with_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    [line] = capsys.readouterr().out.splitlines()
    assert message in line


def test_a_folder_without_a_tokenizer_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit):
        main(["--policy", str(tmp_path), "--tasks", "1"])
    assert f"no model can be loaded from '{tmp_path}'" in capsys.readouterr().out


def test_an_environment_without_an_expert_is_refused_where_it_would_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("envs.cabinet.env.CabinetEnv.expert")
    with pytest.raises(ConfigError, match=r"--policy expert needs an environment with expert\(\), which .* lacks"):
        quiet(tasks=1)


def stopped_after(episodes: int, monkeypatch: pytest.MonkeyPatch, capsys: Any, words: list[str]) -> str:
    """Runs the command line, and presses Ctrl-C when so many episodes have ended; returns the last line."""
    plain, ended = Progress.advance, []

    def advance(*arguments: Any) -> None:
        plain(*arguments)
        ended.append(arguments)
        if len(ended) == episodes:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests' own process may ignore it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Progress, "advance", advance)
            with pytest.raises(SystemExit) as exit_:
                main(words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert exit_.value.code == 130
    return str(capsys.readouterr().out).splitlines()[-1]


def test_an_interrupted_evaluation_keeps_its_episodes_without_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--policy", "expert", "--tasks", "5"]
    assert stopped_after(3, monkeypatch, capsys, words) == (
        "stopped; 3 episodes had ended and are kept; run the same command with --out runs/stopped-evaluation for the rest"
    )
    main([*words, "--out", "runs/stopped-evaluation"])
    assert "3 of 5 episodes are already there" in capsys.readouterr().out
    assert len(read_episodes(tmp_path / "runs" / "stopped-evaluation" / "episodes" / "evaluation.jsonl")) == 5
    assert stopped_after(1, monkeypatch, capsys, words).endswith("--out runs/stopped-evaluation-2 for the rest")


def test_a_stopped_lockstep_evaluation_keeps_what_ended(
    trained: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained.save(tmp_path / "model")
    words = ["--policy", str(tmp_path / "model"), "--tasks", "4", "--rollouts", "2", "--max-action-tokens", "6"]
    out = tmp_path / "out"
    last = stopped_after(2, monkeypatch, capsys, [*words, "--slots", "3", "--out", str(out)])
    assert last == "stopped; run the same command again for the rest"
    assert len(read_episodes(out / "episodes" / "evaluation.jsonl")) == 2


def test_a_stopped_evaluation_without_out_keeps_token_ids_if_it_was_asked_to(
    trained: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trained.save(tmp_path / "model")
    words = ["--policy", "model", "--tasks", "2", "--rollouts", "1", "--max-action-tokens", "6", "--slots", "1"]
    stopped_after(1, monkeypatch, capsys, [*words, "--keep-tokens"])
    [line] = read_episodes(tmp_path / "runs" / "stopped-evaluation" / "episodes" / "evaluation.jsonl")
    assert sum(len(sequence["ids"]) for sequence in line["sequences"]) == line["tokens"]


def test_a_context_without_room_for_any_first_message_is_an_error(trained: Policy, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    settings = {"policy": str(tmp_path / "model"), "tasks": 2, "rollouts": 1, "max_action_tokens": 6, "horizon": 2}
    for _ in range(2):  # the second reads the episodes of the first
        with pytest.raises(
            ConfigError, match=r"no episode's first message fits into the model's context.*raise --max-context"
        ):
            quiet(**settings, max_context=3, out=tmp_path / "out")
    assert quiet(**settings, out=tmp_path / "out").length_mean > 0


def test_a_split_without_a_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.evaluation.play.tasks_of", lambda _: [])
    with pytest.raises(
        ConfigError, match=r"EH-Cabinet-v0 has no task with the arguments {'split': 'all'}; choose another"
    ):
        quiet()


def test_tasks_can_be_spread_over_the_split(tmp_path: Path) -> None:
    quiet(policy="expert", every=5, tasks=3, out=tmp_path)
    played = read_episodes(tmp_path / "episodes" / "evaluation.jsonl")
    assert [line["task_id"] for line in played] == ["train-000000", "train-000005", "train-000010"]


def test_a_script_is_told_the_budget_that_the_flag_asks_for(tmp_path: Path) -> None:
    quiet(policy="expert", tasks=1, budget_hint=" [{left} of {horizon} left]", horizon=9, out=tmp_path)
    (episode,) = read_episodes(tmp_path / "episodes" / "evaluation.jsonl")
    assert episode["prompt"].endswith(" [9 of 9 left]")
    assert episode["turns"][0]["observation"].endswith(" [8 of 9 left]")


@pytest.mark.parametrize(
    ("smaller_than", "given", "threads"), [(0, None, None), (10**9, None, 1), (0, 3, 3), (10**9, 0, None)]
)
def test_only_a_small_model_has_one_thread_by_default(
    trained: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    smaller_than: int,
    given: int | None,
    threads: int | None,
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr("harness.evaluate._SMALL", smaller_than)
    trained.save(tmp_path)
    quiet(policy=str(tmp_path), tasks=1, rollouts=1, max_action_tokens=6, horizon=1, threads=given)
    assert chosen == ([] if threads is None else [threads])


@pytest.mark.usefixtures("bfcl_python")
def test_the_log_names_the_check_that_failed(tmp_path: Path) -> None:
    quiet(env="EH-BFCL-v0", policy="empty", split="test", tasks=1, env_args='{"categories": ["base"]}', out=tmp_path)
    (episode,) = read_episodes(tmp_path / "episodes" / "evaluation.jsonl")
    assert episode["failure"] == {"turn": 0, "kind": "no_call"}


def test_the_environments_own_limit_is_not_called_the_horizon(tmp_path: Path) -> None:
    result = quiet(policy="empty", tasks=2, env_args='{"max_episode_steps": 2}', horizon=5, out=tmp_path / "own")
    assert (result.truncated, result.length_mean) == (1.0, 2.0)
    quiet(policy="empty", tasks=2, horizon=2, out=tmp_path / "k")
    ends = {
        name: {json.loads(line)["end"] for line in (tmp_path / name / "episodes" / "evaluation.jsonl").open()}
        for name in ("own", "k")
    }
    assert ends == {"own": {"truncated"}, "k": {"horizon"}}
