import copy

import pytest
import torch
from one_step import copied, update
from one_step import one_step as episode
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, GenerationConfig, Qwen3MoeConfig

from eh_gym.errors import ConfigError
from harness.model.lora import add_lora, plain_parameters, without_lora
from harness.model.policy import Policy
from harness.sampling.vllm.transfer import weights_file
from harness.settings.optimizer import Optimizer
from harness.update.optimizer import make_optimizer, parameters_of

pytest.importorskip("peft")


@pytest.fixture
def adapted(trained):
    policy = copied(trained)
    add_lora(policy.model, 4, seed=0)
    optimizer = make_optimizer(policy.model, Optimizer(learning_rate=3e-3))
    assert sum(p.numel() for p in parameters_of(optimizer)) < 0.3 * trained.model.num_parameters()
    for _ in range(3):
        pair = [episode(policy, 0, "open(a)", reward=1.0), episode(policy, 0, "open(b)", reward=0.0)]
        update(policy, optimizer, pair)
    return policy


def score(policy):
    return torch.tensor(episode(policy, 0, "open(a)", reward=0.0).logprobs)


def test_only_the_adapters_are_trained_and_left_out_they_leave_the_model_as_it_was(trained, adapted):
    assert (score(adapted) - score(trained)).abs().max() > 0.01
    with without_lora(adapted.model):
        assert torch.equal(score(adapted), score(trained))
    assert (score(adapted) - score(trained)).abs().max() > 0.01


def test_what_is_handed_over_and_saved_is_a_plain_model(trained, adapted, tmp_path):
    names = [name for name, _ in trained.model.named_parameters()]
    assert [name for name, _ in plain_parameters(adapted.model)] == names
    merged = copy.deepcopy(trained.model)
    with weights_file(adapted.model) as path:
        merged.load_state_dict(load_file(path), strict=False)
    torch.testing.assert_close(
        score(Policy(merged, trained.tokenizer, trained.chat)), score(adapted), atol=1e-4, rtol=0
    )
    adapted.save(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(saved) is type(trained.model)
    ends = saved.generation_config.eos_token_id
    assert (
        ends == GenerationConfig.from_pretrained(tmp_path).eos_token_id == trained.model.generation_config.eos_token_id
    )
    for a, b in zip(saved.parameters(), merged.parameters(), strict=True):
        assert torch.equal(a, b)


def mixture(config, **more):
    torch.manual_seed(0)
    sizes = dict.fromkeys(("num_experts", "n_routed_experts"), 4) | {"num_experts_per_tok": 2, "num_hidden_layers": 1}
    sizes |= {"vocab_size": 99, "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(config(**sizes | more)).eval()


def test_experts_get_no_adapters(trained, tmp_path):
    model, ids = mixture(Qwen3MoeConfig, head_dim=8), torch.arange(9)[None]
    add_lora(model, 4, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    expected = model(ids).logits
    with without_lora(model):
        assert not torch.allclose(model(ids).logits, expected, atol=1e-3)  # they do something
    Policy(model, trained.tokenizer, trained.chat).save(tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(merged(ids).logits, expected, atol=1e-5, rtol=0)


# peft's, before our error.
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys did not match:RuntimeWarning")
def test_experts_that_peft_would_adapt_are_refused():
    model = mixture(DeepseekV3Config, n_group=1, topk_group=1, q_lora_rank=4, kv_lora_rank=4, first_k_dense_replace=0)
    with pytest.raises(ConfigError, match="experts of DeepseekV3"):
        add_lora(model, 4, seed=0)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_an_adapter_computes_what_peft_s_own_layer_does(trained, dtype, bound):
    model = copied(trained).model.to(dtype)
    add_lora(model, 4, seed=0)
    layer = next(module for name, module in model.named_modules() if name.endswith("down_proj"))
    torch.nn.init.normal_(layer.lora_B["default"].weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 5, layer.in_features, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = []
    for forward in (layer.forward, type(layer).forward.__get__(layer)):
        layer.zero_grad()
        sent = x.clone().requires_grad_()
        out = forward(sent)
        out.float().square().sum().backward()
        found.append([out, sent.grad, *(layer.get_submodule(f"lora_{m}.default").weight.grad for m in "AB")])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= bound * theirs.abs().max()
