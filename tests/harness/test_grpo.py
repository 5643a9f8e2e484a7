import json
import os
import pkgutil
import resource
import shutil
import subprocess
import sys
from unittest import mock

import pytest
import torch
from glossary import check_glossary
from other_values import with_others
from quiet_run import kill_and_resume, metrics_of, rows_of_run, run
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from eh_gym import EpisodeOutcome
from eh_gym.errors import StateError
from eh_gym.horizon.controller import episode_horizon
from harness.grpo import main
from harness.machine.ranks import Ranks
from harness.records.episode_log import read_episodes, read_system_prompt
from harness.records.files import lock_folder
from harness.records.metrics import read_metrics
from harness.records.run_folder import prepare
from harness.rollout.environment import task_environment
from harness.settings.grpo import GRPOConfig
from harness.settings.horizon import new_controller
from harness.settings.section import Changes, changed
from harness.terminal.display import Display
from harness.training.first_policy import load

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def quick(quick, trained_folder):
    """From the saved clone: else each run would have the expert play again, for the tiny model's tokenizer."""
    return changed(quick, model=str(trained_folder), **{"warm_start.episodes": 0})


def test_the_same_seed_trains_the_same_and_another_differs(quick, tmp_path):
    setup = changed(with_others(quick, Changes.SETUP), out=tmp_path / "setup")
    machine = changed(with_others(quick, Changes.MACHINE), out=tmp_path / "machine", updates=1)
    other = changed(quick, out=tmp_path / "other", seed=1, updates=2, eval_tasks=0)
    evaluations = [run(config) for config in (quick, setup, machine, other)]
    assert metrics_of(quick) == metrics_of(setup)
    assert evaluations[0] == evaluations[1]
    first, rounded = metrics_of(quick)[0], metrics_of(machine)[0]
    numbers = {name: value for name, value in first.items() if value is not None}
    assert {name: rounded[name] for name in numbers} == pytest.approx(numbers, rel=1e-3, abs=1e-5)
    assert metrics_of(quick)[:2] != metrics_of(other)


def test_a_run_leaves_everything_in_its_folder(quick):
    evaluations = run(quick)
    folder = quick.out
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["update"] for row in rows] == [0, 1, 2, 3]
    check_glossary(rows[-1])
    assert rows[0]["horizon/k"] == quick.horizon.k0
    assert rows[0]["train/logp_difference_max"] < 1e-4
    assert rows[-1]["tokens/total"] == sum(row["tokens/update"] for row in rows)
    assert GRPOConfig.from_json((folder / "config.json").read_text()) == quick
    assert "torch" in json.loads((folder / "versions.json").read_text())
    assert json.loads((folder / "evaluation.json").read_text()) == json.loads(json.dumps(evaluations))
    board = EventAccumulator(str(folder)).Reload()
    assert board.Scalars("rollout/success")[3].value == pytest.approx(rows[3]["rollout/success"])
    episodes = read_episodes(folder / "episodes" / "update-000003.jsonl")
    assert len(episodes) == quick.tasks_per_update * quick.group_size
    assert sum(e["success"] for e in episodes) / len(episodes) == rows[3]["rollout/success"]
    in_loss = [e["action_tokens"] for e in episodes if e["advantage"] is not None]
    assert (len(in_loss), sum(in_loss)) == (rows[3]["train/episodes_in_loss"], rows[3]["train/tokens_in_loss"])
    assert {e["action_tokens"] - sum(turn["action_tokens"] for turn in e["turns"]) for e in episodes} == {0}
    assert {e["prompt_tokens"] for e in episodes} == {4}  # <obs> start x <act>
    assert "open(x)" in (read_system_prompt(folder / "episodes", episodes[0]["system_prompt"]) or "")
    assert AutoModelForCausalLM.from_pretrained(folder / "model").num_parameters() > 0
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template


def test_a_killed_run_resumes_to_the_same_metrics(quick, tmp_path, cache, child_env):
    whole = changed(quick, updates=8, checkpoint_every=3)
    run(whole)
    killed = changed(whole, out=tmp_path / "killed")
    # After update 2: before the first periodic checkpoint; after 5: past one.
    kill_and_resume(killed, (2, 5), {**child_env, "EH_CACHE_DIR": str(cache)})
    assert metrics_of(killed) == metrics_of(whole)
    for file in sorted((tmp_path / "run" / "episodes").glob("*.jsonl")):
        assert (killed.out / "episodes" / file.name).read_text() == file.read_text()
    assert (killed.out / "evaluation.json").read_text() == (tmp_path / "run" / "evaluation.json").read_text()


def test_held_out_evaluations_are_logged_and_change_no_other_metric(quick, tmp_path):
    plain = changed(quick, eval_tasks=4, out=tmp_path / "plain")
    run(plain)
    config = changed(plain, out=tmp_path / "run", eval_every=2)
    evaluations = run(config)
    rows = metrics_of(config)
    assert [row.get("evaluation/mean_at_k") is not None for row in rows] == [False, True, False, True]
    assert "time/evaluation_s" in read_metrics(tmp_path / "run" / "metrics.jsonl")[1]
    without = [{k: v for k, v in row.items() if not k.startswith("evaluation/")} for row in rows]
    assert without == metrics_of(plain)
    assert evaluations["after"]["sampled"]["tasks"] == 4


def test_a_run_without_a_limit_has_no_k(quick):
    [row] = rows_of_run(changed(quick, wrapper="none", updates=1, eval_tasks=0, max_context=256))
    assert "horizon/k" not in row
    assert row["rollout/length_mean"] > 0


def test_episodes_have_the_k_of_their_kind(quick):
    config = changed(quick, updates=3, eval_tasks=0, k0=7, horizon_key="optimal_steps", alpha=1.0)
    run(config)
    rows = metrics_of(config)
    kinds, seen = {7.0}, set()
    for update, row in enumerate(rows):
        episodes = read_episodes(config.out / "episodes" / f"update-{update:06d}.jsonl")
        horizons = [line["horizon"] for line in episodes]
        assert set(horizons) <= kinds
        assert row["horizon/k_mean"] == pytest.approx(sum(horizons) / len(horizons))
        kinds = {7.0} | {k for name, k in row.items() if name.startswith("horizon/k_of/")}
        seen |= set(horizons)
    assert {7.0} < seen


def test_each_task_has_the_k_of_its_own_successes(quick):
    config = changed(quick, eval_tasks=0, wrapper="task", k0=12, free_every=3, env_args={"tasks": 4})
    run(config)
    controller, seen = new_controller(config.horizon), set()
    for update, row in enumerate(metrics_of(config)):
        for line in read_episodes(config.out / "episodes" / f"update-{update:06d}.jsonl"):
            k = episode_horizon(controller, {"task_id": line["task_id"]}, None)
            assert line["horizon"] == k
            seen.add(k)
            controller.record(
                EpisodeOutcome(line["length"], k, line["success"], line["end"] == "horizon", line["task_id"])
            )
        assert controller.update()["horizon/bounded"] == row["horizon/bounded"]
    assert {12, 50} < seen


def test_a_second_process_is_kept_out_of_a_run(quick, monkeypatch, capsys):
    monkeypatch.setattr("harness.records.files._PATIENCE_S", 0.0)
    monkeypatch.setattr("harness.training.carry_out.train_loop", lambda *_, **__: None)
    folder = quick.out
    prepare(quick)
    with lock_folder(folder, "the first"), pytest.raises(SystemExit, match="2"):
        main(["--resume", str(folder)])
    assert str(folder) in " ".join(capsys.readouterr().out.split())
    main(["--resume", str(folder)])  # once the first has ended


def test_a_run_that_lacked_memory_or_time_goes_on_with_other_flags(quick, monkeypatch, capsys):
    full = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB."
    )
    trained = mock.Mock(side_effect=[full, {}])
    monkeypatch.setattr("harness.training.carry_out.train_loop", trained)
    monkeypatch.setattr("harness.settings.extras.find_spec", lambda name: name)  # also where there is no vLLM
    folder = prepare(changed(quick, sampler="vllm", out=quick.out.with_name("my run")))
    with pytest.raises(SystemExit, match="2"):
        main(["--resume", str(folder)])
    said = " ".join(capsys.readouterr().out.split())
    assert "the GPU ran out of memory (Tried to allocate 2.00 GiB. GPU 0 has" in said
    assert f"continue with --resume '{folder}' and a lower --tokens-per-microbatch, --gpu-memory-utilization or" in said
    main(["--resume", str(folder), "--gpu-memory-utilization", "0.3", "--group-size=400", "--no-packing"])
    assert trained.call_args.args[0].sampling.gpu_memory_utilization == 0.3
    assert "ignored: --group-size, --no-packing\n" in capsys.readouterr().out


def test_a_run_that_is_lengthened_is_the_long_one(quick, tmp_path, capsys):
    long = changed(quick, updates=3, eval_tasks=2, final_lr_fraction=1.0, out=tmp_path / "long")
    evaluations = run(long)
    short = changed(long, updates=2, out=quick.out)
    run(short)
    main(["--resume", str(quick.out), "--updates", "3"])
    assert " s since this start\n" in capsys.readouterr().out
    assert metrics_of(short) == metrics_of(long)
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["after"] == json.loads(
        json.dumps(evaluations["after"])
    )
    assert json.loads((tmp_path / "run" / "config.json").read_text())["updates"] == 3
    with pytest.raises(SystemExit):
        main(["--resume", str(quick.out), "--updates", "1"])
    assert "--updates 1" in capsys.readouterr().out


def test_a_resume_that_is_refused_changes_nothing(quick):
    run(changed(quick, updates=1, eval_tasks=0))
    state = quick.out / "checkpoints" / "update-000001" / "state.json"
    state.write_text(state.read_text()[:-9])
    before = {path: path.read_bytes() for path in quick.out.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        main(["--resume", str(quick.out), "--updates", "50"])
    assert {path: path.read_bytes() for path in quick.out.rglob("*") if path.is_file()} == before


def test_metrics_without_a_checkpoint_are_not_written_over(quick):
    run(changed(quick, updates=1, eval_tasks=0))
    shutil.rmtree(quick.out / "checkpoints")
    with pytest.raises(StateError, match=r"no checkpoint"):
        run(changed(quick, updates=1, eval_tasks=0), resume=True)
    assert len(metrics_of(quick)) == 1


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--k0", "60", "5..50"),
        ("--eval-split", "nonsense", "'nonsense'"),
        ("--env", "EH-Nope-v0", "EH-Nope-v0"),
        ("--env", "CartPole-v1", "task_ids"),
        ("--env-args", '{"nope": 1}', '{"nope": 1}'),
        ("--horizon-key", "nope", "'nope'"),
        ("--warm-start.episodes=0", "--warm-start.seed=3", "--warm-start.seed"),
        ("--trackers", "wandb", "pip install -e '.[train,wandb]'"),
        ("--sampler", "vllm", "pip install -e '.[train,vllm]'"),
        ("--sampler=vllm-server", "--url=http://127.0.0.1:9", "http://127.0.0.1:9 did not answer GET /version"),
        ("--lora-rank", "4", "pip install -e '.[train,lora]'"),
        ("--env-workers", "ray", "pip install -e '.[train,ray]'"),
        ("--env", "EH-Remote-v0", "pip install -e '.[train,openenv]'"),
    ],
)
def test_a_mistake_ends_before_a_model_is_made_and_leaves_no_run(capsys, tmp_path, monkeypatch, flag, value, message):
    monkeypatch.setattr("harness.training.first_policy.load_policy", lambda *_: pytest.fail("a model was made"))
    monkeypatch.setattr("harness.training.build.load", lambda *_: pytest.fail("a model was made"))
    monkeypatch.setattr("harness.settings.extras.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        main([flag, value, "--out", str(tmp_path / "x")])
    out = " ".join(capsys.readouterr().out.split())
    assert message in out
    assert "Traceback" not in out
    assert ("run folder" in out) <= ("pip install" not in message)  # a missing package is said before the plan
    assert not (tmp_path / "x").exists()


def test_a_full_disk_ends_the_command_with_a_line_and_the_run_resumes_to_the_same_metrics(
    quick, tmp_path, monkeypatch, capsys
):
    config = changed(quick, updates=1, eval_tasks=0)
    whole, folder = changed(config, out=tmp_path / "whole"), prepare(config)
    run(whole)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for file, writer, most in (
        ("checkpoints/update-000000", "harness.training.training_run.write_training_state", 20_000),
        ("metrics.jsonl", "harness.records.metrics.MetricsLog.write", 100),
        ("events.out", "harness.records.trackers._TensorBoard.write", 200),
        ("episodes/update-000000.jsonl", "harness.training.training_run.write_episodes", 3000),
        ("model", "harness.sampling.weights.SampledWeights.save", 20_000),
        ("evaluation.json", "harness.training.loop.write_whole", 10),
    ):
        write = pkgutil.resolve_name(writer)

        def full(*given, write=write, most=most, **more):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
            try:
                return write(*given, **more)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)

        with monkeypatch.context() as patch:
            patch.setattr(writer, full)
            with pytest.raises(SystemExit, match="2"):
                main(["--resume", str(folder)])
        said = capsys.readouterr()
        line = said.out.splitlines()[-1]
        assert line.startswith(f"error: the disk is full, and {folder / file}")
        assert f" was not written; free some space, then continue with --resume {folder}, from " in line
        assert "Traceback" not in said.err
        assert not [*folder.rglob("*part*"), *folder.glob("model")][
            : file != "evaluation.json"
        ]  # what there was takes no room
    main(["--resume", str(folder)])
    assert (folder / "evaluation.json").exists()
    assert metrics_of(config) == metrics_of(whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_folder_trains_like_any_hub_model(quick, tmp_path, dtype):
    config = changed(quick, dtype=dtype, updates=1, eval_tasks=2)
    run(config)
    [row] = metrics_of(config)
    if dtype == "float32":  # the very policy that the tiny run starts from, so the very same episodes
        tiny = changed(config, out=tmp_path / "tiny", model="tiny", **{"warm_start.episodes": 600})
        run(tiny)
        assert row == metrics_of(tiny)[0]
    # bfloat16 keeps 8 bits: sampler and trainer sum in another order, so their log-probabilities differ by percents.
    assert row["train/logp_difference_max"] < (1e-4 if dtype == "float32" else 1.0)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert str(saved.dtype) == f"torch.{dtype}"


@pytest.mark.parametrize(
    "command", [["-m", "harness.grpo", "--help"], ["-c", "from harness.__main__ import train; train()"]]
)
def test_without_the_extra_a_command_ends_with_one_line(child_env, tmp_path, command):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
    )
    env = {**child_env, "PYTHONPATH": os.pathsep.join([str(tmp_path), child_env.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    [line] = result.stderr.splitlines()
    assert "torch" in line
    assert "[train]" in line
    assert result.returncode == 1


def test_a_tiny_model_in_bfloat16_has_its_rotary_frequencies_in_float32(quick):
    config = changed(quick, model="tiny", dtype="bfloat16")
    env = task_environment(config.environment, config.environment.env)
    model = load(config, env, "cpu", Ranks(), Display(Console(quiet=True))).model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers() if b.is_floating_point()} == {torch.float32}
