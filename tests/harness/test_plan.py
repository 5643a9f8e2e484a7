"""Plans: every recipe has one, a refused one names changes that make it fit, and speeds are never made up."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

import gymnasium as gym
import pytest
from transformers import AutoTokenizer

import eh_gym  # noqa: F401 - registers the environments
from eh_gym.errors import ConfigError
from harness.plan import default_for, main
from harness.planning.episode_tokens import lengths_of
from harness.planning.fit import ways_to_fit
from harness.planning.memory import attention_fits, memory_of
from harness.planning.update_time import operations_markdown, update_time_of
from harness.planning.work import work_of
from harness.policy.installed import is_installed, model_folder
from harness.policy.shape import shape_of
from harness.settings.command_line import parse
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
SERVERS = ("--sampler", "vllm-server", "--url", "http://127.0.0.1:8000")
SEVEN = str(ROOT / "recipes" / "bfcl-qwen2.5-7b.toml")


def plan(*words: str) -> Plan:
    return parse(default_for(words), list(words), prog="plan")


@pytest.mark.parametrize(("gpus", "gb"), [(1, 80), (1, 141), (8, 80)])
@pytest.mark.parametrize("recipe", [r for r in RECIPES if "lora" not in r.stem], ids=lambda p: p.stem)
def test_every_recipe_fits_or_is_refused_with_changes_that_make_it_fit(
    recipe: Path, gpus: int, gb: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(recipe), "--gpus", str(gpus), "--gpu-gb", str(gb)]
    if gpus == 8 or "quick" in recipe.stem:
        main(words)
        assert "not measured; give --sample-tokens-per-s" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "--lora-rank 32" in capsys.readouterr().out
    ways = ways_to_fit(plan(*words))
    assert ways
    for way in ways:
        assert memory_of(plan(*words, *shlex.split(way))).fits, way


def test_operations_and_the_whole_count_the_same_with_a_reference() -> None:
    for words in ((), ("--kl-coef", "0.01"), ("--kl-coef", "0.01", "--lora-rank", "32")):
        full = plan("--model", "Qwen/Qwen2.5-7B-Instruct", "--env", "EH-BFCL-v0", "--gpus", "8", *words)
        counted = sum(o.flops for o in update_time_of(full).operations if o.name != "adapters") * full.gpus
        assert counted == pytest.approx(work_of(full).flops, rel=0.01), words


def test_a_context_beyond_the_model_s_positions_adds_no_tokens() -> None:
    full = plan(
        "--model", "Qwen/Qwen2.5-7B-Instruct", "--env", "EH-BFCL-v0", "--max-context", "100000", "--horizon", "500"
    )
    assert work_of(full).tokens <= full.train.episodes_per_update * shape_of(full.train.model).positions


def test_state_has_the_bytes_of_the_training_page() -> None:
    for flags, each in (((), 18), (("--dtype", "float32"), 16)):
        found = memory_of(plan(SEVEN, *flags))
        state = ("weights", "float32 masters", "gradients", "AdamW moments")
        assert sum(found.update.get(name, 0) for name in state) == each * 7_615_616_512
    eight = memory_of(plan(SEVEN, "--gpus", "8", *SERVERS))
    assert (
        sum(eight.update.get(name, 0) for name in state) == 16 * 7_615_616_512 / 8
    )  # float32 shards, whatever it computes in
    assert "gradients" not in eight.rollout


def test_several_gpus_are_ranks() -> None:
    beside = memory_of(plan(SEVEN, "--gpus", "8"))  # an engine on each, which sleeps during the update
    assert beside.rollout["engine's weights"] == 2 * 7_615_616_512
    assert "engine's weights" not in beside.update
    for way in ((), SERVERS):  # an engine's weights and rank 0's copy are gathered in the type that they have there
        assert memory_of(plan(SEVEN, "--gpus", "8", *way)).rollout["gathered tensor"] == 2 * 152_064 * 3584
    own = memory_of(plan(SEVEN, "--gpus", "8", "--sampler", "transformers", "--slots", "20"))
    assert own.update["sampler's weights"] == own.rollout["sampler's weights"] == 2 * 7_615_616_512  # each has a copy
    assert own.rollout["sampler's KV cache"] == 3 * 57_344 * own.longest
    # 7B in float32, which one GPU of 80 GB can't train, on 8 of them.
    assert memory_of(plan(SEVEN, "--gpus", "8", "--dtype", "float32", *SERVERS)).fits


def test_settings_move_the_parts_they_are_about() -> None:
    base = memory_of(plan(SEVEN))
    assert memory_of(plan(SEVEN, "--no-gradient-checkpointing")).update["activations"] > 5 * base.update["activations"]
    assert memory_of(plan(SEVEN, "--max-context", "8192")).update["activations"] < base.update["activations"]
    assert memory_of(plan(SEVEN, "--kl-coef", "0.1")).update["KL reference"] == 2 * 7_615_616_512
    assert "engine's weights" not in base.update
    assert "engine's weights" in memory_of(plan(SEVEN, "--max-staleness", "1", "--eval-every", "0")).update
    assert not memory_of(
        plan(SEVEN, "--lora-rank", "8", "--gpu-memory-utilization", "0.1")
    ).fits  # no room for the weights


def test_moments_in_host_memory_are_in_the_update_alone() -> None:
    fourteen = (SEVEN.replace("7b", "14b"), "--gpus", "8")
    off, on = (memory_of(plan(*fourteen, "--offload-optimizer", way)) for way in ("off", "on"))
    assert on.update == off.update
    assert sum(off.rollout.values()) - sum(on.rollout.values()) == on.host == 14_770_033_664  # 8 bytes each, on 8 GPUs
    assert memory_of(plan(*fourteen)) == off
    larger = (*fourteen, "--gpu-memory-utilization", "0.8")
    assert not memory_of(plan(*larger, "--offload-optimizer", "off")).fits
    auto = memory_of(plan(*larger))
    assert auto.fits
    assert auto.host == on.host
    with pytest.raises(ConfigError, match="--max-staleness"):
        plan(SEVEN, "--offload-optimizer", "on", "--max-staleness", "1", "--eval-every", "0")


def test_attention_s_outputs_are_kept_where_they_fit_with_a_tenth_to_spare() -> None:
    seven, fourteen = (memory_of(plan(SEVEN.replace("7b", size), "--gpus", "8")) for size in ("7b", "14b"))
    assert seven.keeps_attention
    assert seven.update["attention's outputs"] == 28 * 32_768 * (2 * 3584 + 4 * 28)
    assert not fourteen.keeps_attention
    assert fourteen.fits
    longer = 48 * 32_768 * (2 * 5120 + 4 * 40) + sum(fourteen.update.values())
    assert longer > fourteen.available  # 79.4 of 76.0 GB
    # Qwen3-8B with adapters would need 74.1 of 76.0 GB, and the plan is no nearer to a count than that.
    tight = memory_of(plan(SEVEN.replace("qwen2.5-7b", "qwen3-8b-lora")))
    assert tight.fits
    assert not tight.keeps_attention
    assert not memory_of(plan(SEVEN, "--gpus", "8", "--no-gradient-checkpointing")).keeps_attention
    for config, gpu, kept in (
        (plan(SEVEN).train, 80e9, True),
        (plan(SEVEN.replace("7b", "14b")).train, 80e9, False),
        (plan(SEVEN).train, 0, False),  # a CPU
        (dataclasses.replace(plan(SEVEN).train, model="someone/else"), 80e9, False),
    ):
        assert attention_fits(config, int(gpu), 8) == kept


def test_work() -> None:
    given = ("--prompt-tokens", "100", "--action-tokens", "20", "--observation-tokens", "10")
    layers, words = 28 * 233_057_792, 152_064 * 3584
    for gpus, passes in (("1", 16), ("8", 12)):  # on one GPU attention's outputs do not fit
        found = work_of(plan(SEVEN, *given, "--success-rate", "0", "--horizon", "10", "--gpus", gpus))
        assert (found.turns, found.tokens, found.sampled) == (10, 128 * 400, 128 * 200)
        attention = passes * 28 * 3584 * 200
        assert found.flops == pytest.approx(128 * (400 * (8 * layers + attention) + 200 * 8 * words))
    assert work_of(plan(SEVEN, "--success-rate", "1")).turns == pytest.approx(12.9, abs=1.0)  # the paper's mean: 11.93


def test_hours_come_from_what_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = [SEVEN, "--gpus", "8", *SERVERS, "--sample-tokens-per-s", "10000", "--train-tokens-per-s", "20000"]
    main(words)
    out, work = capsys.readouterr().out, work_of(plan(*words))
    assert f"rollouts: {200 * work.sampled / 1e4 / 3600:.1f} hours" in out
    assert f"updates: {200 * work.tokens / 2e4 / 3600:.1f} hours" in out
    main([SEVEN, "--gpus", "8", *SERVERS, "--mfu", "0.5"])
    assert "which is assumed" in capsys.readouterr().out


def test_the_documented_tables_of_operations_are_the_plan_s(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main([SEVEN, "--gpus", "8", "--operations", "--episode-tokens", "16384"])
    table = operations_markdown(plan(SEVEN, "--gpus", "8"), episode_tokens=16_384)
    assert table in capsys.readouterr().out
    page = (ROOT / "docs" / "plan.md").read_text()
    assert table in page, "put this table into docs/plan.md"
    for name, spare, flash_3 in (
        ("computed again, FlashAttention 2", 1.0, False),  # with all of the memory to spare, nothing is kept
        ("outputs kept, FlashAttention 2", 0.1, False),
        ("outputs kept, FlashAttention 3", 0.1, True),
    ):
        monkeypatch.setattr("harness.planning.memory._SPARE", spare)
        found = [
            update_time_of(plan(SEVEN, "--gpus", "8"), episode_tokens=n, flash_3=flash_3) for n in (16_384, 32_768)
        ]
        cells = [f"{time.tokens / time.seconds:,.0f} ({time.mfu:.1%})" for time in found]
        assert f"| {name} | {' | '.join(cells)} |" in page


def test_a_step_has_the_plan_s_flops_and_its_parts_have_their_price() -> None:
    given = ("--prompt-tokens", "100", "--action-tokens", "20", "--observation-tokens", "10")
    small = plan(SEVEN, *given, "--success-rate", "0", "--horizon", "10")
    step = update_time_of(small)
    parts = {operation.name: operation for operation in step.operations}
    tokens, layers, words = 128 * 400, 28 * 233_057_792, 152_064 * 3584
    assert sum(part.flops for part in step.operations) == pytest.approx(work_of(small).flops)
    model = tokens * 6 * layers + 128 * 200 * 6 * words + 12 * 28 * 3584 * 200 * tokens  # 6 P + 12 L A p, and 6 V H
    assert step.model_flops == pytest.approx(model)
    assert step.mfu == pytest.approx(model / step.seconds / 989e12)
    assert parts["linear layers, forward"].seconds == pytest.approx(2 * tokens * layers / (0.7 * 989e12))
    swiglu = 4 * 28 * tokens * 6 * 18_944  # forward, again, and backward twice; two inputs and an output of two bytes
    assert parts["SwiGLU"].moved == pytest.approx(swiglu)
    assert parts["SwiGLU"].seconds == pytest.approx(swiglu / (0.8 * 3.35e12))
    assert update_time_of(small, fused=False).seconds > step.seconds
    lora = update_time_of(plan(SEVEN, *given, "--success-rate", "0", "--horizon", "10", "--lora-rank", "32"))
    assert lora.mfu < step.mfu  # adapters read and write every output again
    assert lora.model_flops == pytest.approx(model - tokens * 2 * layers - 128 * 200 * 2 * words)


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="--gpus"):
        Plan(gpus=0)
    with pytest.raises(ConfigError, match="turns"):  # as harness.grpo refuses it
        plan(SEVEN, "--gpus", "8", "--sampler", "vllm", "--max-staleness", "1", "--eval-every", "0")
    with pytest.raises(ConfigError, match="reserve_gb"):
        plan("--reserve-gb", "nan")
    with pytest.raises(ConfigError, match="--prompt-tokens"):
        memory_of(dataclasses.replace(plan(), train=GRPOConfig(env="my:Env-v0")))


def test_a_recipe_that_does_not_come_first_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It was taken for a name alone: the plan was that of the tiny model."""
    with pytest.raises(SystemExit):
        main(["--gpus", "8", SEVEN])
    assert "must come first" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([SEVEN, "--recipe", SEVEN.replace("7b", "14b")])
    assert "there are two recipes" in capsys.readouterr().out


def test_memory_has_room_for_the_longest_episode_of_training_and_of_evaluations() -> None:
    given = (
        "--prompt-tokens",
        "100",
        "--action-tokens",
        "20",
        "--observation-tokens",
        "88",
        "--tokens-per-microbatch",
        "1",
    )
    words = (SEVEN, *given, "--max-action-tokens", "12")
    for horizon, trained, longest in (
        (("--wrapper", "fixed", "--k0", "15"), 1600, 5100),  # 100 + 15 x 100; evaluations play at k_max, 50
        (("--eval-horizons", "20,80"), 5100, 8100),
        (("--wrapper", "none"), 32_768, 32_768),  # no limit but the model's positions
    ):
        found = memory_of(plan(*words, *horizon))
        assert (found.tokens, found.longest) == (trained, longest)


def test_a_chat_model_s_prompts_are_counted_with_its_own_tokenizer() -> None:
    """The plan took 20 tokens, which are the tiny model's, for the prompt of every model."""
    if not is_installed("smollm2-135m"):
        assert not os.environ.get("EH_REQUIRE_BACKENDS"), "run: python -m harness.models install smollm2-135m"
        pytest.skip("the model is not installed: python -m harness.models install smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(model_folder("smollm2-135m"))
    observation, info = gym.make("EH-Cabinet-v0").reset(seed=0)
    messages = [{"role": "system", "content": info["system_prompt"]}, {"role": "user", "content": observation}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    counted = lengths_of(plan("--model", "smollm2-135m"))
    assert counted.prompt == len(ids) == 216  # tasks differ in one letter
    assert "counted with the model's tokenizer" in counted.source
    assert (counted.action, counted.observation) == (4, 12)
    assert lengths_of(plan("--model", "smollm2-135m", "--prompt-tokens", "300")).prompt == 300
    assert lengths_of(plan("--model", "Qwen/Qwen2.5-7B-Instruct")).prompt == 216  # whose tokenizer is not here
    assert lengths_of(plan("--model", "tiny")).prompt == 20
