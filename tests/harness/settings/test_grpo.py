"""Settings: presets, checks, and the flags made from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from eh_gym import (
    ElasticHorizon,
    FixedHorizon,
    LinearHorizon,
    MultiplicativeHorizon,
    TaskHorizon,
    TTIHorizon,
)
from eh_gym.errors import ConfigError
from harness.settings import command_line
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.section import changed

RECIPES = Path(__file__).parents[3] / "recipes"


def parse(*words: str) -> GRPOConfig:
    return command_line.parse(preset(words), list(words), prog="grpo")


def test_a_real_model_gets_the_papers_settings() -> None:
    c, recipe = (
        parse("--model", "Qwen/Qwen2.5-7B-Instruct"),
        preset(["--recipe", str(RECIPES / "bfcl-qwen2.5-7b.toml")]),
    )
    for name in ("learning_rate", "tasks_per_update", "group_size", "updates", "k0", "alpha", "delta", "stages"):
        assert getattr(c, name) == getattr(recipe, name), name
    assert c.warm_start.episodes == 0


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*-lora.toml")), ids=lambda path: path.stem)
def test_with_adapters_a_large_model_gets_the_settings_of_the_lora_recipes(recipe: Path) -> None:
    words = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--env", "EH-BFCL-v0", "--lora-rank", "32", "--sampler", "vllm")
    given, published = parse(*words), preset(["--recipe", str(recipe)])
    same = ["learning_rate", "tis_cap", "dtype", "gradient_checkpointing"]
    for name in [*same, *(["gpu_memory_utilization"] if "7b" in recipe.stem else [])]:  # it depends on the model's size
        assert getattr(given, name) == getattr(published, name), name
    assert given == changed(from_recipe("quickstart"), model=words[1], env="EH-BFCL-v0", lora_rank=32, sampler="vllm")
    assert parse(*words[:-2]).gpu_memory_utilization == 0.5  # no engine beside the trainer
    assert parse(*words, "--learning-rate", "3e-6", "--sampler", "transformers").learning_rate == 3e-6
    assert parse("--lora-rank", "2").learning_rate == parse().learning_rate  # the tiny model's


def test_flags_override_the_preset_and_reach_the_nested_settings() -> None:
    c = parse("--wrapper", "tti", "--k-max", "40", "--warm-start.max-batches", "7", "--no-normalize-std")
    assert (c.wrapper, c.evaluation_horizon, c.warm_start.max_batches, c.loss.normalize_std) == ("tti", 40, 7, False)
    assert c.warm_start.episodes == from_recipe("quickstart").warm_start.episodes
    assert parse("--env=EH-BFCL-v0").max_observation_tokens == 96
    assert parse("--model", "x", "--model=tiny") == parse("--model", "tiny")  # the last one counts


def test_real_models_stream_and_tiny_ones_are_reproducible() -> None:
    assert parse("--model", "x").rollout == "streaming"
    assert parse().rollout == parse("--env", "EH-BFCL-v0").rollout == "lockstep"
    assert parse("--rollout", "streaming", "--max-staleness", "1", "--tis-cap", "2").max_staleness == 1


@pytest.mark.parametrize("argv", [[], ["--env", "EH-BFCL-v0"], ["--env", "EH-AppWorld-v0"], ["--model", "x"]])
def test_settings_survive_their_file(argv: list[str]) -> None:
    assert GRPOConfig.from_json(preset(argv).to_json()) == preset(argv)


def test_the_learning_rate_warms_up_and_decays() -> None:
    c = dataclasses.replace(
        from_recipe("quickstart"), learning_rate=1.0, warmup_updates=4, updates=10, final_lr_fraction=0.5
    )
    # update 1: 2/4 of the warm-up, times 1 - 0.5 * 1/10; update 8: 1 - 0.5 * 8/10
    assert c.learning_rate_at(1) == pytest.approx(0.5 * 0.95)
    assert c.learning_rate_at(8) == pytest.approx(0.6)
    assert changed(from_recipe("quickstart"), model="X").learning_rate_at(199) == 1e-6


def test_a_controller_of_one_s_own_is_made_by_its_name() -> None:
    config = parse(
        "--wrapper", "eh_gym.horizon:LinearHorizon", "--wrapper-args", '{"k_min": 4, "k_max": 9, "delta": 0.5}'
    )
    controller = config.controller()
    assert controller is not None
    assert controller.state_dict() == LinearHorizon(4, 9, 0.5).state_dict()
    assert config.wrapper == "LinearHorizon"
    assert GRPOConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"wrapper": "elastc"}, "elastic, fixed, .*MODULE:CLASS.*'elastc'"),
        ({"wrapper": "no_module:Seeking"}, "no_module:Seeking"),
        ({"wrapper": "eh_gym:FixedHorizon", "wrapper_args": '{"k": 5}'}, "did you mean k0"),
        ({"wrapper": "eh_gym:FixedHorizon", "wrapper_args": "5"}, "--wrapper-args"),
        ({"wrapper_args": '{"k0": 5}'}, "--wrapper-args"),
        # the plan and the evaluations would have another K
        ({"wrapper": "task", "wrapper_args": '{"k_max": 80}'}, "k_max has a flag of its own.*give --k-max"),
    ],
)
def test_a_controller_that_can_not_be_made_is_refused_before_anything_begins(settings: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        changed(from_recipe("quickstart"), **settings)


@pytest.mark.parametrize(
    ("wrapper", "kind", "k"),
    [
        ("elastic", ElasticHorizon, 15),
        ("fixed", FixedHorizon, 15),
        ("linear", LinearHorizon, 10),
        ("multiplicative", MultiplicativeHorizon, 5),
        ("tti", TTIHorizon, 15),
        ("task", TaskHorizon, 25),
    ],
)
def test_every_wrapper_makes_its_controller(wrapper: Any, kind: type, k: int) -> None:
    controller = changed(from_recipe("quickstart"), model="X", wrapper=wrapper).controller()
    assert controller is not None
    assert isinstance(controller, kind)
    assert controller.horizon == k


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k0", 60),
        ("env_args", "{split: train}"),
        ("env_args", '{"split": "dev"}'),
        ("env_args", '{"EH-Cabnet-v0": {}}'),
        ("env_args", "[1]"),
        ("env", "EH-Cabinet-v0:1.5,EH-CabinetLocked-v0"),
        ("env", "EH-Cabinet-v0:-1"),
        ("stages", "15,20"),
        ("stages", "0:15,0:20"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}|--{name.replace('_', '-')}"):
        changed(from_recipe("quickstart"), **{name: value})


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"wrapper": "fixed", "k0": 80}, "--k-max"),
        ({"wrapper": "fixed", "k0": 0}, "k0 must be"),
        ({"wrapper": "tti", "stages": "5:10"}, "stages"),
        ({"wrapper": "linear", "linear_increment": 0.0}, "--linear-increment"),
        ({"max_staleness": 1, "rollout": "lockstep", "eval_every": 0}, "--max-staleness.*--rollout"),
        ({"ray_address": "auto"}, "--env-workers ray"),
    ],
)
def test_settings_that_do_not_go_together_name_the_flag_to_change(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        changed(from_recipe("quickstart"), **changes)


def test_appworld_is_evaluated_on_a_split_that_it_has() -> None:
    assert parse("--env", "EH-AppWorld-v0", "--split", "mini").eval_split == "mini"
    assert parse("--env", "EH-AppWorld-v0").eval_split == "dev"
    assert parse("--env", "EH-AppWorld-v0", "--model", "x").eval_split == "dev"
    assert parse("--env", "EH-AppWorld-v0", "--split", "mini").updates == 5
    assert parse("--env", "EH-BFCL-v0").eval_split == "test"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"rollout": "bad"}, "rollout.*'streaming', 'lockstep'.*'bad'.*--rollout"),
        ({"updates": "3"}, "updates must be a whole number >= 1, got '3'; change --updates"),
        ({"learning_rate": True}, "learning_rate must be a number"),
        ({"normalize_std": 1}, "normalize_std must be True or False"),
        ({"warm_start": {"polish_waste": 2.0}}, "warm_start.polish_waste must be"),
    ],
)
def test_a_python_program_is_told_of_a_value_that_a_command_line_would_refuse(given, names):
    with pytest.raises(ConfigError, match=names):
        changed(from_recipe("quickstart"), **given)
