import asyncio
import functools
import json
import random
import signal
import sys
from configparser import ConfigParser
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from child import python
from quiet_run import untimed

from eh_gym import ElasticHorizon, FixedHorizon
from eh_gym.errors import ConfigError, EHError
from envs.cabinet.env import CabinetEnv
from harness import GRPOConfig, WarmStart, evaluate_policy, train
from harness.__main__ import COMMANDS
from harness.agents.env import AgentEnv
from harness.agents.program import find_agent
from harness.records.episode_log import read_episodes
from harness.records.run_folder import prepare
from harness.rollout.rollout import rollout
from harness.settings.section import changed, in_python, python_names

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def short(quick):
    return changed(quick, updates=2, eval_tasks=2)


@pytest.fixture
def from_clone(short, trained_folder):
    """The same from the saved clone: on an environment of one's own a warm start takes most of the time."""
    return changed(short, model=str(trained_folder), **{"warm_start.episodes": 0})


def assert_same(result, other):
    assert untimed(result.history) == untimed(other.history)
    assert result.evaluations == other.evaluations


def test_twice_in_a_process_whose_loop_runs_gives_the_same_and_changes_nothing_outside(from_clone, tmp_path):
    async def cell():
        return [train(changed(from_clone, out=tmp_path / name, threads=1), show=False) for name in "ab"]

    torch.set_num_threads(2)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.get_num_threads()
    first, second = asyncio.run(cell())
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.get_num_threads()
    torch.set_num_threads(1)
    assert_same(first, second)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert [row["update"] for row in first.history] == [0, 1]
    assert first.evaluations == json.loads((first.folder / "evaluation.json").read_text())
    assert evaluate_policy(first.model, tasks=2, rollouts=1, max_action_tokens=6, show=False).episodes == 2


def test_callbacks_hear_each_update_and_end_a_run_that_can_be_resumed(from_clone, tmp_path):
    config = changed(from_clone, updates=3, checkpoint_every=10)
    heard = []

    def hear(update, metrics):
        heard.append((update, metrics["rollout/success"]))
        return 80  # as the `write` of a file; only True ends a run

    whole = train(changed(config, out=tmp_path / "whole"), on_update=hear, show=False)
    assert heard == [(row["update"], row["rollout/success"]) for row in whole.history]

    def stop(update, metrics):
        return update == 1

    stopped = train(config, callbacks=[stop], on_update=hear, show=False)
    assert [update for update, _ in heard[3:]] == [0, 1]
    assert (stopped.model / "model.safetensors").exists()
    assert "after" in stopped.evaluations
    with pytest.raises(ZeroDivisionError):
        train(resume=stopped.folder, on_update=lambda *_: 1 / 0, show=False)
    # The evaluation of two updates is gone: a run that has one has ended.
    assert not (stopped.folder / "evaluation.json").exists()
    assert_same(train(resume=stopped.folder, show=False), whole)


@pytest.mark.usefixtures("signals_are_heard")
def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(from_clone, tmp_path, monkeypatch):
    config = changed(from_clone, updates=3, checkpoint_every=10)
    whole = train(changed(config, out=tmp_path / "whole"), show=False)
    updates = []

    def trains(update, metrics):
        updates.append(update)
        if update == 1:
            for _ in range(signals):
                signal.raise_signal(signal.SIGTERM)

    def plays(*arguments, **more):
        if updates == [0, 1]:  # it is still playing for the next one
            signal.raise_signal(signal.SIGINT)
        return rollout(*arguments, **more)

    monkeypatch.setattr("harness.rollout.rollout.rollout", plays)
    for signals, goes_on in ((0, "from update 2"), (1, "from update 2"), (2, "from update 0")):
        out = tmp_path / str(signals)
        with pytest.raises(KeyboardInterrupt, match=rf"train\(resume=.*{goes_on}"):
            train(changed(config, out=out), on_update=trains, show=False)
        assert updates == [0, 1]
        updates.clear()
        assert_same(train(resume=out, show=False), whole)


@pytest.mark.usefixtures("signals_are_heard")
def test_before_its_first_update_a_failure_leaves_nothing_and_an_interrupt_begins_again(short, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("harness.training.build.clone_expert", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(short, show=False)
        assert not short.out.exists()
        patch.setattr("harness.training.build.clone_expert", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(KeyboardInterrupt, match=r"train\(resume=.*from its beginning"):
            train(short, show=False)
    assert len(train(resume=short.out, show=False).history) == 2


def make_cabinet(split="train"):
    return CabinetEnv(split)


def test_an_environment_and_a_controller_may_be_objects(from_clone, tmp_path):
    controller = ElasticHorizon(k0=10, min_successes=2)
    given = train(from_clone, env=make_cabinet, controller=controller, show=False)
    named = train(changed(from_clone, out=tmp_path / "named"), show=False)
    assert untimed(given.history) == untimed(named.history)
    kept = json.loads((given.folder / "config.json").read_text())
    assert (kept["environment"]["env"], kept["horizon"]["wrapper"]) == ("given:make_cabinet", "given:ElasticHorizon")
    with pytest.raises(ConfigError, match=r"make_cabinet.*train\(resume=..., env=...\)"):
        train(resume=given.folder, show=False)
    with pytest.raises(ConfigError, match=r"ElasticHorizon.*train\(resume=..., controller=...\)"):
        train(resume=given.folder, env=make_cabinet, show=False)
    again = train(resume=given.folder, env=make_cabinet, controller=ElasticHorizon(k0=10, min_successes=2), show=False)
    assert again.evaluations == given.evaluations


def test_a_run_on_a_function_without_a_split_does_not_call_its_tasks_held_out(short, capsys):
    train(replace(short, updates=1, warm_start=WarmStart()), env=lambda: CabinetEnv("train"))
    assert "on 2 training tasks at K" in capsys.readouterr().out
    assert evaluate_policy("expert", lambda: CabinetEnv("test"), tasks=3, show=False).mean_at_k == 1.0


class Tells(FixedHorizon):
    def __init__(self, metrics):
        super().__init__(9)
        self.told = metrics

    def update(self):
        return self.told


def says_nothing(task, base_url) -> None: ...  # which is what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"env": 3},
        {"controller": 3},
        {"resume": "x", "config": GRPOConfig()},
        {"config": "EH-Cabinet-v0"},
        {"on_update": 3},
        {"on_update": lambda metrics: None},
        {"callbacks": [lambda update, metrics, more: None]},
        {"env": functools.partial(AgentEnv, lambda task: True, [{}])},
        {"env": functools.partial(AgentEnv, says_nothing, [{}])},
        {"controller": Tells(None)},
        {"controller": Tells({"my/k": 3.0})},
        {"controller": Tells({"custom/k": "three"})},
    ],
)
def test_wrong_objects_are_refused(wrong, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("harness.training.build._make_policy")
    with pytest.raises(ConfigError, match=r"got|custom/"):
        train(**wrong)


def test_an_environment_in_the_wrong_place_is_refused():
    with pytest.raises(ConfigError, match=r"env must be an id, got .*make_cabinet.*train\(env=...\)"):
        changed(GRPOConfig(), env=make_cabinet)
    with pytest.raises(ConfigError, match="a function that returns an environment, got"):
        evaluate_policy("expert", CabinetEnv("test"), show=False)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"env": "EH-CabinetLocked-v0"}, "its saved env, 'EH-Cabinet-v0', got 'EH-CabinetLocked-v0'"),
        ({"controller": ElasticHorizon()}, "its saved controller, 'elastic', got"),
        ({"updates": 0}, "updates must be a whole number >= 1, got 0"),
    ],
)
def test_what_a_resumed_run_can_not_take_is_refused(given, named, quick):
    prepare(quick)
    with pytest.raises(ConfigError, match=named):
        train(resume=quick.out, show=False, **given)


class Undefined(CabinetEnv):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.nan, *rest


@pytest.mark.parametrize("warm", [False, True])
def test_an_environment_that_would_be_trained_on_wrongly_is_refused(warm, short):
    said = "^task '.*step 1: the reward must be a finite .* nan; .*TextEnvContract"
    with pytest.raises(EHError, match=said):
        train(short if warm else replace(short, warm_start=WarmStart()), env=Undefined, show=False)
    with pytest.raises(EHError, match=said):
        evaluate_policy("expert", Undefined, tasks=2, show=False)


class Graded(CabinetEnv):
    def step(self, action):
        observation, reward, *rest, info = super().step(action)
        return observation, 0.01 + reward, *rest, {name: x for name, x in info.items() if name != "success"}


@pytest.mark.parametrize("kept", [False, True])
def test_graded_rewards_are_summed_and_a_success_is_a_sum_above_the_threshold(kept, from_clone, capsys):
    own = {"success_threshold": 1.0, "truncated_reward": "keep" if kept else "zero"}
    config = changed(from_clone, updates=1)
    result = train(changed(config, **own), env=Graded, show=False)
    [row] = result.history
    lines = read_episodes(result.folder / "episodes" / "update-000000.jsonl")
    for line in lines:
        earned = 0.01 * line["length"] + line["success"]
        assert line["reward"] == pytest.approx(0.0 if line["end"] == "horizon" and not kept else earned)
        assert line.get("threshold") == (1.0 if line["end"] == "terminated" else None)
    plain = train(changed(config, out=config.out.with_name("plain")), env=CabinetEnv, show=False).history[0]
    same = ("rollout/success", "rollout/truncated", "horizon/k", "tokens/update")
    assert [row[name] for name in same] == [plain[name] for name in same]
    assert row["rollout/reward_mean"] == pytest.approx(np.mean([line["reward"] for line in lines]))
    assert row["rollout/reward_mean"] > plain["rollout/reward_mean"] == plain["rollout/success"] > 0
    found = result.evaluations["after"]["greedy"]
    assert found["reward_mean"] != found["mean_at_k"]
    evaluated = evaluate_policy("expert", Graded, tasks=4, success_threshold=1.5)
    assert "no episode reached --success-threshold 1.5; the best earned 1." in capsys.readouterr().out
    assert (evaluated.mean_at_k, evaluated.reward_mean > 1) == (0.0, True)


def test_advice_is_python_and_names_settings_rather_than_flags(short):
    class NoExpert(CabinetEnv):
        def __getattribute__(self, name):
            if name == "expert":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(ConfigError) as refused:
        train(short, env=NoExpert, show=False)
    assert "--" not in str(refused.value)
    assert ", which NoExpert lacks; give model.model" in str(refused.value)
    with pytest.raises(ConfigError, match=r"^policy expert needs an environment with expert\(\), which NoExpert"):
        evaluate_policy("expert", NoExpert, tasks=2, show=False)
    with pytest.raises(ConfigError, match=r"^base_url is for policy openai, got policy expert; leave it out"):
        evaluate_policy("expert", base_url="http://x", show=False)
    names = python_names(short)
    assert in_python("raise --eval-tasks, --k0, --url or --max-model-len", names) == (
        "raise evaluation.tasks, horizon.k0, sampling.url or --max-model-len"
    )


def test_a_script_needs_no_main_block(child_env, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from harness import GRPOConfig, train\n"
        "result = train(GRPOConfig.recipe('quickstart', updates=1, tasks_per_update=2, group_size=2,\n"
        "    environment={'env_threads': 4}, evaluation={'tasks': 2}, run={'trackers': ''},\n"
        "    warm_start={'episodes': 20, 'max_batches': 2, 'polish_batches': 0}))\n"
        "print(len(result.history), result.folder)\n"
    )
    env = child_env | {"EH_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    assert python(script, env=env, cwd=tmp_path).splitlines()[-1] == "1 runs/EH-Cabinet-v0-elastic-seed0"


def test_the_package_lists_its_commands_and_scripts_find_theirs(capsys):
    import_module("harness.__main__").main()
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    scripts = settings["options.entry_points"]["console_scripts"].split("\n")[1:]
    for script in scripts:
        name, _, home = script.partition(" = ")
        module, _, function = home.partition(":")
        assert callable(getattr(import_module(module), function)), name


def test_a_script_finds_an_agent_of_the_current_folder(monkeypatch, tmp_path):
    (tmp_path / "agent_of_this_folder.py").write_text("def play(task, base_url): ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as a script in another folder begins
    found = []
    command = SimpleNamespace(main=lambda: found.append(find_agent("agent_of_this_folder:play")))
    monkeypatch.setattr("harness.__main__.import_module", lambda _: command)
    import_module("harness.__main__").train()
    assert [agent.name for agent in found] == ["play"]
    assert sys.path[-1] == str(tmp_path)  # a folder envs/ there hides nothing
