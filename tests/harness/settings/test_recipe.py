import re

import pytest

from eh_gym.errors import ConfigError
from eh_gym.horizon.make import HORIZONS
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.horizon import new_controller
from harness.settings.recipe import recipes
from harness.settings.sampling import SAMPLERS
from harness.settings.section import flat
from harness.settings.warm_start import WarmStart
from harness.training.command import read_command

RECIPES = recipes()
PAPER = flat(GRPOConfig())
MEMORY = {
    "recompute",
    "offload_optimizer",
    "tokens_per_microbatch",
    "max_context",
    "gpu_memory_utilization",
    "engine_args",
}


def own(name, wrapper="elastic"):
    """What a recipe has otherwise than the paper."""
    paper = PAPER if wrapper == "elastic" else flat(from_recipe("paper", {"wrapper": wrapper}))
    return {k: v for k, v in flat(from_recipe(name, {"wrapper": wrapper})).items() if paper.get(k, None) != v}


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_with_every_horizon_and_sampler(name):
    config = from_recipe(name)
    assert config.wrapper == "elastic"
    assert GRPOConfig.from_json(config.to_json()) == GRPOConfig.recipe(name) == from_recipe(RECIPES[name]) == config
    for wrapper in HORIZONS:
        assert new_controller(from_recipe(name, {"wrapper": wrapper}).horizon) is not None
    for sampler in SAMPLERS:
        assert from_recipe(name, {"sampler": sampler}).sampling.sampler == sampler


@pytest.mark.parametrize("name", [name for name in RECIPES if re.search(r"-qwen2.5-\d+b$", name)])
def test_the_published_settings_are_the_paper_s_but_for_memory(name):
    ours = {"tis_cap", "env", "split", "eval_split", "eval_tasks", "eval_every", "model", "sampler"}
    assert own(name).keys() <= MEMORY | ours
    c = flat(from_recipe(name))
    assert re.fullmatch(r"Qwen/Qwen2.5-(7|14)B-Instruct", c["model"])
    assert c["env"] in ("EH-AppWorld-v0", "EH-BFCL-v0")
    for names, values in (
        ("learning_rate tasks_per_update group_size updates minibatches", (1e-6, 16, 8, 200, 1)),
        ("kl_coef clip_low clip_high aggregation", (0.0, 0.2, 0.2, "token-mean")),
        ("k0 k_min k_max alpha delta buffer_size min_successes statistic", (15, 5, 50, 0.1, 10, 100, 20, "p90")),
        (
            "dtype rollout eval_rollouts sampler tis_cap",
            ("bfloat16", "streaming", 8, "vllm", 2.0),
        ),
    ):
        assert tuple(c[one] for one in names.split()) == values
    for wrapper in ("linear", "tti", "fixed", "multiplicative", "task"):
        assert {*own(name, wrapper)} == {*own(name)}  # the fields' own defaults are the paper's schedules
    assert (HORIZONS["linear"]().k_min, HORIZONS["linear"]().delta) == (10, 0.2)


@pytest.mark.parametrize("name", [name for name in RECIPES if "lora" in name])
def test_the_recipes_with_adapters_differ_from_the_paper_s_in_what_they_need(name):
    paper, its = flat(from_recipe("bfcl-qwen2.5-7b")), flat(from_recipe(name, {"sampler": "vllm"}))
    given = {"env", "split", "model", "eval_tasks", "eval_every"} if name == "lora" else {"model"}  # by flags
    assert {k for k in its if its[k] != paper[k]} <= {"learning_rate", "lora_rank", *MEMORY, *given}
    assert (its["learning_rate"], its["lora_rank"], its["tis_cap"], its["dtype"]) == (1e-5, 32, 2.0, "bfloat16")


def test_a_recipe_stands_between_the_defaults_and_the_flags(tmp_path):
    path = write(
        tmp_path,
        'updates = 7\n[model]\nmodel = "X"\n[horizon.elastic]\nk0 = 12\n[horizon.linear]\ndelta = 3\n'
        "[optimizer]\nlearning_rate = 1\n[warm_start]\nepisodes = 5\n",
    )
    words = ["--recipe", str(path), "--updates", "3", "--warm-start.max-batches", "2"]
    config = read_command(words).config
    assert [flat(config)[name] for name in ("updates", "k0", "learning_rate", "tasks_per_update")] == [3, 12, 1, 16]
    assert isinstance(config.optimizer.learning_rate, float)  # as a flag gives it
    assert config.warm_start == WarmStart(episodes=5, max_batches=2)
    python = GRPOConfig.recipe(path, updates=3, warm_start={"max_batches": 2})
    assert python == config
    assert GRPOConfig.recipe("quickstart", warm_start=WarmStart(episodes=3)).warm_start == WarmStart(episodes=3)
    assert flat(read_command([*words, "--wrapper", "linear"]).config)["delta"] == 3.0
    linear = GRPOConfig.recipe(path, horizon={"wrapper": "linear"})
    assert flat(linear)["delta"] == 3.0
    path.unlink()
    # A resumed run has it in its own settings.
    assert GRPOConfig.from_json(config.to_json()).to_json() == config.to_json()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[loss]\nkl_coeff = 1", r"mine.toml: no setting loss.kl_coeff; did you mean loss.kl_coef\?"),
        ("xyzzy = 1", "no setting xyzzy; there are updates, tasks_per_update"),
        ("[horizon.linear]\ndelta = 0", "mine.toml: delta must be"),  # though another one is chosen
        ('out = "x"', "--out"),
        ("updates", "mine.toml can't be read as TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_the_nearest_key_or_type(tmp_path, text, names):
    with pytest.raises(ConfigError, match=names):
        from_recipe(write(tmp_path, text))


def test_a_recipe_that_there_is_not_has_a_correction(tmp_path):
    path = write(tmp_path, "")
    for name, said in (
        ("quickstat", "no recipe quickstat; did you mean quickstart?"),
        (tmp_path / "mime.toml", f"did you mean {path}?"),
        (tmp_path / "x.toml", "there are paper, "),
    ):
        with pytest.raises(ConfigError) as error:
            from_recipe(name)
        assert said in str(error.value)
