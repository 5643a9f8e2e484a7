import json
from typing import Any

import pytest

from eh_gym import LinearHorizon
from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.make import HORIZONS
from harness.grpo import main
from harness.records.run_folder import prepare
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.horizon import NamedHorizon, new_controller
from harness.settings.section import changed, flat
from harness.settings.warm_start import WarmStart
from harness.training.command import read_command


def test_the_first_line_of_a_run_names_its_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("harness.training.carry_out.train_loop", lambda *_, **__: {})
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nmodel = "tiny"\n')
    for i, (words, said) in enumerate(
        [
            (["--wrapper", "elastic"], "recipe: quickstart ("),
            (["--recipe", "bfcl"], "recipe: bfcl ("),
            (["--recipe", str(file)], f"recipe: {file}"),
            (["--recipe", "paper", "--model", "tiny"], "recipe: paper, the defaults of --help-all"),
        ]
    ):
        main([*words, "--out", str(tmp_path / str(i))])
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith(said)
        assert first.count(str(file)) == (i == 2)
        assert first.endswith("; --recipe chooses another") == (not i)  # where none was named


def test_a_model_or_a_benchmark_has_a_recipe_by_name():
    for words in (["--model", "X"], ["--model=tiny", "--model=X"], ["--model", "X", "--lora-rank", "32"]):
        with pytest.raises(ConfigError, match=r"--model X needs a recipe: --recipe paper .* lora .* smollm2"):
            read_command(words)
    assert read_command(["--model", "X", "--model=tiny"]).config == from_recipe("quickstart")  # the last one counts
    c = read_command(["--model", "X", "--recipe", "paper"]).config
    assert c == changed(GRPOConfig(), model="X")
    assert c.optimizer.learning_rate_at(199, 200) == 1e-6
    for env, recipe in (("EH-BFCL-v0", "bfcl"), ("envs.appworld:EH-AppWorld-v0", "appworld")):
        with pytest.raises(ConfigError, match=f"--env {env} needs a recipe: --recipe {recipe}"):
            read_command(["--env", env])


def test_an_agent_with_the_recipe_smollm2_needs_no_further_flag(tmp_path):
    words = ["--agent", "my_agent:play", "--tasks", "tasks.jsonl"]
    c = read_command(["--recipe", "smollm2", *words]).config
    assert [c.environment.agent, str(c.environment.tasks), c.warm_start] == [*words[1::2], WarmStart()]
    with pytest.raises(ConfigError, match="--agent needs --model"):
        read_command(words)


def test_a_resumed_run_has_its_own_settings_and_the_machine_s_flags(quick):
    saved = changed(quick, wrapper="linear", delta=4.0, kl_coef=0.1)
    prepare(saved)
    resume = ["--resume", str(quick.out)]
    own = read_command(resume)
    assert (own.config, own.updates, own.notes) == (saved, None, [])
    assert (own.config.wrapper, own.config.loss.kl_coef) == ("linear", 0.1)
    machine = ["--device", "cpu", "--slots", "3", "--tokens-per-microbatch", "77", "--rank-timeout-s", "9"]
    machine += ["--recompute", "fit", "--offload-optimizer"]
    request = read_command([*resume, *machine, "--updates", "9", "--kl-coef", "0.1", "--k-min", "4", "--recipe=x"])
    assert {n for n, v in flat(request.config).items() if v != flat(own.config)[n]} == {
        *("device", "slots", "tokens_per_microbatch", "rank_timeout_s", "recompute", "offload_optimizer")
    }
    assert (request.updates, request.resume) == (9, quick.out)
    # It has the given --kl-coef.
    assert request.notes == ["note: the run goes on with its own settings; ignored: --k-min, --recipe"]


def test_settings_of_another_version_are_refused_with_their_format():
    text = json.loads(GRPOConfig().to_json())
    for other, said in (
        ({"updates": 3, "k0": 9}, "format 1, and this version has 2"),
        (text | {"format": 3}, "format 3"),
        (text | {"updatez": 3}, "no setting updatez; did you mean updates?"),
        ([], "not this version's settings"),
    ):
        with pytest.raises(StateError) as error:
            GRPOConfig.from_json(json.dumps(other))
        assert said in str(error.value)


def test_the_learning_rate_warms_up_and_decays():
    c = changed(GRPOConfig(), learning_rate=1.0, warmup_updates=4, final_lr_fraction=0.5).optimizer
    # update 1: 2/4 of the warm-up, times 1 - 0.5 * 1/10; update 8: 1 - 0.5 * 8/10
    assert c.learning_rate_at(1, 10) == pytest.approx(0.5 * 0.95)
    assert c.learning_rate_at(8, 10) == pytest.approx(0.6)


@pytest.mark.parametrize("wrapper", HORIZONS)
def test_every_wrapper_makes_its_controller_and_its_fields_are_flags(wrapper):
    config = read_command(["--recipe", "paper", "--model", "X", "--wrapper", wrapper]).config
    controller = new_controller(config.horizon)
    assert type(controller) is HORIZONS[wrapper]
    assert controller is not config.horizon  # the settings have the pattern of it
    assert controller.state_dict() == HORIZONS[wrapper]().state_dict()
    assert flat(config)["wrapper"] == wrapper


def test_a_controller_of_one_s_own_is_made_by_its_name():
    words = ["--wrapper", "eh_gym.horizon:LinearHorizon", "--k-min", "4", "--k-max", "9", "--delta", "0.5"]
    config = read_command(words).config
    controller = new_controller(config.horizon)
    assert controller.state_dict() == LinearHorizon(4, 9, 0.5).state_dict()
    assert config.evaluation_horizon == 9
    assert new_controller(GRPOConfig(horizon=None).horizon) is None
    with pytest.raises(ConfigError, match=r"a Python program gave to train\(controller=...\)"):
        new_controller(NamedHorizon("given:Mine"))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"wrapper": "fixed", "k0": 80}, "--eval-horizon"),
        ({"wrapper": "tti", "stages": {5: 10}}, "stages"),
        ({"wrapper": "tti", "stages": "15,20"}, "stages"),
        ({"env_args": "{split: train}"}, "env_args|--env-args"),
        ({"env_args": {"split": "dev"}}, "--split dev"),
        ({"env_args": {"EH-Cabnet-v0": {}}}, "env_args has EH-Cabnet-v0"),
        ({"env_args": [1]}, "env_args must be"),
        ({"env": "EH-Cabinet-v0:1.5,EH-CabinetLocked-v0"}, "--env"),
        ({"tasks": 3}, "--tasks 3 is for harness.evaluate"),
        ({"tasks": "a.jsonl"}, "a file of tasks is for --agent"),
        ({"at_k": "stop"}, "--at-k is for --agent"),
        ({"agent_upstream": "run"}, "--agent-upstream is for --agent, and none is given; leave it out"),
        ({"ray_address": "auto"}, "--env-workers ray"),
        ({"temperature": 0}, "temperature must be > 0 in training"),
        ({"eval_every": 2, "eval_tasks": 0}, "--eval-tasks"),
        ({"max_staleness": 1, "rollout": "lockstep", "eval_every": 0}, "--max-staleness.*--rollout"),
        ({"max_staleness": 1, "rollout": "streaming", "eval_every": 1}, "max_staleness 0"),
        ({"max_staleness": 1, "rollout": "streaming", "offload_optimizer": True}, "--offload-optimizer needs"),
        ({"trackers": "nope"}, "change --trackers"),
        ({"chat_template_kwargs": {"tools": 1}}, "--chat-template-kwargs must not have tools"),
        ({"sampler": "vllm", "engine_args": {"dtype": "auto"}}, "--engine-args must not have dtype; give --dtype"),
        ({"reasoning_format": "<a> <a>"}, "--reasoning-format"),
        ({"warm_start.polish_waste": 2.0}, "warm_start.polish_waste must be"),
    ],
)
def test_a_wrong_value_or_two_that_do_not_go_together_are_named(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        changed(from_recipe("quickstart"), **settings)


def test_what_torchrun_can_not_do_is_refused_for_its_ranks():
    base = changed(from_recipe("quickstart"), rollout="streaming", max_staleness=1)
    changed(base, sampler="vllm-server").check_ranks()
    for values, names in (({"sampler": "vllm"}, "--max-staleness"), ({"env_workers": "ray"}, "--ray-address auto")):
        with pytest.raises(ConfigError, match=names):
            changed(base, **values).check_ranks()


def test_only_a_split_of_their_own_makes_evaluations_held_out():
    base = from_recipe("quickstart")
    assert base.held_out
    for values in ({"split": "test"}, {"eval_split": "train"}, {"split": "all"}):
        assert not changed(base, **values).held_out
    assert [changed(base, slots=slots).slots_of_rank(3) for slots in (0, 10, 1000)] == [22, 4, 22]
