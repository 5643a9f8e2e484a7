"""vLLM in the trainer's process, beyond what every sampler does."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from engine_parameters import change_every_parameter, differing, held
from quiet_run import rows_of_run
from small_model import ask, forward_logprobs, new_model
from transformers import AutoConfig, AutoModelForCausalLM

from eh_gym.errors import ConfigError
from harness.model.lora import add_lora
from harness.model.policy import load_policy
from harness.records.metrics import read_metrics
from harness.sampling.vllm import engine
from harness.sampling.vllm.engine import VLLMSampler
from harness.settings.section import changed
from harness.types.sampler import SampleRequest, sample_all


@pytest.mark.parametrize(("tied", "adapters", "dtype"), [(True, 0, "float32"), (False, 4, "bfloat16")])
def test_every_parameter_is_handed_over_to_the_last_bit(real_vllm, monkeypatch, tied, adapters, dtype):
    model = new_model(tied=tied).to(getattr(torch, dtype))
    if adapters:
        add_lora(model, adapters, seed=0)
    sampler = VLLMSampler(model)
    _, buffers, _ = held(sampler)
    assert differing(sampler, model) == []
    change_every_parameter(model)
    assert len(differing(sampler, model)) == len(held(sampler)[0])  # the engine has its own
    sampler.weights_changed()
    assert differing(sampler, model) == []
    assert all(buffers[name].equal(after) for name, after in held(sampler)[1].items())

    stale = dict(engine.plain_parameters(model, sampler._dtype))["model.layers.1.mlp.down_proj.weight"].clone()
    change_every_parameter(model, seed=1)
    whole = engine.plain_parameters
    monkeypatch.setattr(  # a hand-over that forgets one matrix
        engine, "plain_parameters", lambda *a: ((n, stale if "1.mlp.down" in n else p) for n, p in whole(*a))
    )
    sampler.weights_changed()
    assert differing(sampler, model) == ["model.layers.1.mlp.down_proj.weight"]


def test_a_second_start_finds_what_the_first_compiled(real_vllm):
    engines = [VLLMSampler(new_model()) for _ in range(2)]
    engines.append(VLLMSampler(new_model(tied=False)))
    first, second, other = (engine._engine.vllm_config.compute_hash() for engine in engines)
    assert first == second != other


def test_further_arguments_reach_vllm_and_their_effect_is_measured(real_vllm):
    model, prompt = new_model(), [1, 2, 3, 4] * 8
    arguments = {"kv_cache_dtype": "fp8_e5m2", "disable_log_stats": False}
    if not torch.cpu.get_capabilities().get("avx512_f"):
        with pytest.raises(ConfigError, match=r"vLLM does not start: .*AVX-512"):
            VLLMSampler(model, engine_args=arguments)
        arguments = {"hf_overrides": {"rms_norm_eps": 0.1}, "disable_log_stats": False}
    sampler = VLLMSampler(model, engine_args=arguments)
    [sample] = sample_all(sampler, [ask(0, prompt)])
    own = forward_logprobs(model, prompt, sample.ids)
    assert 1e-3 < max(abs(a - b) for a, b in zip(own, sample.logprobs, strict=True)) < 1
    with pytest.raises(ConfigError, match=r"have no 'kv_cache_dtyp'; did you mean kv_cache_dtype\?"):
        VLLMSampler(model, engine_args={"kv_cache_dtyp": "fp8"})


def differences(kind, more):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **more)).eval()
    for name, weight in model.state_dict().items():
        if weight.dim() > 1:  # as they are drawn, all tokens would be about as likely
            torch.nn.init.normal_(weight, std=0.25)
        elif "layer_scalar" in name:
            weight.fill_(0.5)
    sampler, prompt, found = VLLMSampler(model, max_context=64), [5, 6, 8], []
    for session in range(2):
        [sample] = sample_all(sampler, [SampleRequest(session, prompt, max_tokens=6, seed=session)])
        sampler.end_session(session)
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([prompt + sample.ids])).logits[0].float(), -1)
            own = [float(logp[len(prompt) - 1 + i, token]) for i, token in enumerate(sample.ids)]
            found.append(max(abs(a - b) for a, b in zip(own, sample.logprobs, strict=True)))
            for p in model.parameters():
                p.mul_(0.9)
        sampler.weights_changed()
    return found


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gemma4_text", {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 32}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    ],
)
def test_scales_and_experts_are_handed_over(real_vllm, kind, more):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        assert max(process.submit(differences, kind, more).result()) < 1e-4


def test_torch_is_left_as_it_was(made):
    made("vllm")
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_the_cache_is_measured(made):
    _, sampler = made("vllm")
    assert sampler.cache_of(0)[1] >= sampler.max_context
    sampler.weights_changed()
    sampler.cache_metrics()
    first = list(range(1, 40))
    second = [*first, *sample_all(sampler, [ask(0, first)])[0].ids, 3]
    assert sampler.cache_metrics()["rollout/cache_hits"] == 0
    sample_all(sampler, [ask(0, second)])
    assert sampler.cache_metrics()["rollout/cache_hits"] == 32 / len(second)  # one whole block of 32
    sampler.end_session(0)


@pytest.mark.parametrize("changes", [(), ("--dtype", "bfloat16", "--lora-rank", "4")])
def test_each_rank_may_have_an_engine_of_its_own(real_vllm, tmp_path, changes):
    words = "--sampler vllm --updates 2 --tasks-per-update 2 --group-size 4 --eval-tasks 2 --warm-start.max-batches 30"
    launch = "-m torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0"
    launch = [sys.executable, *launch.split(), *f"-m harness.grpo --device cpu --out {tmp_path / 'run'}".split()]
    done = subprocess.run([*launch, *words.split(), *changes], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    off = [row["train/logp_difference_mean"] for row in rows if row["train/episodes_in_loss"]]
    assert off
    assert max(off) < (5e-3 if changes else 1e-4)
    assert load_policy(tmp_path / "run" / "model").model.dtype == torch.float32


def test_episodes_go_on_in_the_engine_while_the_policy_is_trained(made, quick, tmp_path):
    made("vllm")
    ahead = {"max_staleness": 3, "rollout": "streaming", "env_threads": 4, "slots": 8, "eval_tasks": 0}
    config = changed(quick, sampler="vllm", learning_rate=0.0, out=tmp_path / "run", **ahead)
    rows = rows_of_run(config)
    assert [row["rollout/episodes"] for row in rows] == [16.0] * 4
    assert 0 < max(row["rollout/policy_lag"] for row in rows) <= 3
    assert all(row["train/logp_difference_max"] < 1e-3 for row in rows if row["train/episodes_in_loss"])
