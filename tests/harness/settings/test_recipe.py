"""Recipes: every one in the folder loads, flags override them, and a mistake is named with its correction."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError
from harness.grpo import main
from harness.settings.command_line import parse
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.section import changed

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def load(path: Path, *flags: str) -> GRPOConfig:
    return preset(["--recipe", str(path), *flags])


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_in_the_folder_loads(path: Path) -> None:
    config = load(path)
    assert config.recipe == path
    assert config.controller() is not None
    assert GRPOConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("path", [p for p in RECIPES if re.search(r"qwen2.5-\d+b$", p.stem)], ids=lambda p: p.stem)
def test_the_published_settings_are_the_paper_s(path: Path) -> None:
    """Table "Complete hyperparameter settings", and the schedules of "Baseline Implementations"."""
    c = load(path)
    assert (c.optimizer.learning_rate, c.tasks_per_update, c.group_size, c.updates, c.optimizer.minibatches) == (
        1e-6,
        16,
        8,
        200,
        1,
    )
    assert (c.loss.kl_coef, c.loss.clip_low, c.loss.clip_high, c.loss.aggregation) == (0.0, 0.2, 0.2, "token-mean")
    assert (
        c.horizon.k0,
        c.horizon.k_min,
        c.evaluation_horizon,
        c.horizon.alpha,
        c.horizon.delta,
        c.horizon.buffer_size,
        c.horizon.min_successes,
    ) == (15, 5, 50, 0.1, 10, 100, 20)
    assert (c.linear_start, c.linear_increment, c.stages) == (10, 0.2, "0:15,50:20,100:30,150:50")
    assert (c.horizon.statistic, c.evaluation.rollouts) == ("p90", 8)
    assert re.fullmatch(r"Qwen/Qwen2.5-(7|14)B-Instruct", c.model.model)
    assert c.environment.env in ("EH-AppWorld-v0", "EH-BFCL-v0")


@pytest.mark.parametrize("path", [p for p in RECIPES if "lora" in p.stem], ids=lambda p: p.stem)
def test_the_recipes_with_adapters_differ_from_the_paper_s_in_what_they_need(path: Path) -> None:
    paper, own = (dataclasses.asdict(load(p)) for p in (ROOT / "recipes" / "bfcl-qwen2.5-7b.toml", path))
    memory = {"model", "lora_rank", "max_context", "tokens_per_microbatch", "gpu_memory_utilization", "keep_attention"}
    assert {name for name in own if own[name] != paper[name]} <= {"recipe", "learning_rate", *memory}


def test_a_recipe_stands_between_the_preset_and_the_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "updates = 7\nk0 = 12\nlearning_rate = 1\n[warm_start]\nepisodes = 5\n")
    config = load(path)
    assert (config.updates, config.horizon.k0, config.optimizer.learning_rate) == (7, 12, 1)
    assert isinstance(config.optimizer.learning_rate, float)  # as a flag gives it
    assert config.warm_start == dataclasses.replace(from_recipe("quickstart").warm_start, episodes=5)
    assert config.tasks_per_update == from_recipe("quickstart").tasks_per_update
    with pytest.raises(SystemExit):
        main(["--recipe", str(path), "--k0", "60", "--out", str(tmp_path / "run")])
    said = capsys.readouterr()  # by us or by tyro, depending on its version
    assert "5..50" in said.out + said.err


def test_a_python_program_has_the_command_line_s_recipe(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "X"\nupdates = 7\n[warm_start]\nepisodes = 5\n')
    words = ["--recipe", str(path), "--updates", "3", "--warm-start.max-batches", "2"]
    config = changed(from_recipe("quickstart"), recipe=path, updates=3, warm_start={"max_batches": 2})  # type: ignore[arg-type]
    assert config == parse(preset(words), words, prog="x")
    path.unlink()
    assert GRPOConfig.from_json(config.to_json()) == config  # a resumed run has it in its own settings


def test_a_recipe_s_model_and_environment_choose_the_preset(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "Qwen/Qwen2.5-7B-Instruct"\nenv = "EH-AppWorld-v0"\nk0 = 20\n')
    assert (load(path).learning_rate, load(path).eval_split, load(path).k0) == (1e-6, "dev", 20)
    assert load(path, "--model", "tiny").learning_rate == preset(["--env", "EH-AppWorld-v0"]).learning_rate


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("learnin_rate = 1e-6", "mine.toml.*'learnin_rate'.*learning_rate"),
        ("learning-rate = 1e-6", "'learning-rate'.*learning_rate"),
        ("xyzzy = 1", "'xyzzy'.*env, env_args"),
        ("[warm_start]\nepisode = 3", "'warm_start.episode'.*warm_start.episodes"),
        ('updates = "7"', "updates must be a whole number"),
        ("updates = true", "updates must be a whole number"),
        ("learning_rate = true", "learning_rate must be a number"),
        ("normalize_std = 1", "normalize_std must be True or False"),
        ("warm_start = 3", "warm_start must be a table"),
        ('out = "x"', "--out"),
        ("updates = 0", "mine.toml.*updates"),
        ("updates", "mine.toml.*TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_the_nearest_key_or_type(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        load(write(tmp_path, text))
