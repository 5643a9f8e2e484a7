"""The recipes for GPUs on a CPU: each trains a tiny random model of its model's family, with either sampler."""

import runpy
from pathlib import Path

import pytest
from quiet_run import rows_of_run
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from harness.settings.grpo import from_recipe
from harness.settings.recipe import recipes
from harness.settings.section import changed

NAMES = [name for name in recipes() if "/Qwen" in str(from_recipe(name).model.model)]

COIN = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "rehearse.py"))["COIN"]


@pytest.mark.filterwarnings("ignore:this CPU has no units for bfloat16")
@pytest.mark.parametrize("sampler", ["transformers", "vllm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_a_tiny_model_of_its_family(request, trained, tmp_path, name, sampler):
    recipe = from_recipe(name)
    assert recipe.sampling.sampler == "vllm"
    if sampler == "vllm":
        request.getfixturevalue("real_vllm")
    family = AutoConfig.for_model(
        "qwen3" if "Qwen3" in recipe.model.model else "qwen2",
        **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"eos_token_id": trained.tokenizer.eos_token_id, "pad_token_id": None, "bos_token_id": None},
        **{"num_key_value_heads": 1, "head_dim": 32, "vocab_size": len(trained.tokenizer)},
        **{"max_position_embeddings": 32_768, "tie_word_embeddings": "3B" in name or "1.5B" in name},
    )
    set_seed(0)  # other tests draw, too
    AutoModelForCausalLM.from_config(family).save_pretrained(tmp_path / "tiny")
    trained.tokenizer.save_pretrained(tmp_path / "tiny")
    (tmp_path / "coin.py").write_text(COIN)
    config = changed(
        from_recipe(name, {"sampler": sampler}),
        **{"updates": 2, "tasks_per_update": 2, "group_size": 4, "eval_tasks": 2, "eval_rollouts": 1, "eval_every": 0},
        **{"env": f"{tmp_path}/coin.py:Coin", "env_threads": 0, "slots": 8, "rollout": "lockstep"},
        **{"split": "train", "eval_split": "dev", "model": str(tmp_path / "tiny"), "out": tmp_path / "run"},
        max_action_tokens=6,
    )
    rows = rows_of_run(config)
    assert [row["train/skipped_steps"] for row in rows] == [0, 0]
    assert sum(row["train/grad_norm"] > 0 for row in rows) > 0
    assert max(row["train/logp_difference_mean"] or 0 for row in rows) < 0.05  # nats; None if all rewards are equal
