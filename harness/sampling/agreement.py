"""Compares the transformers sampler with a model's own forward pass, for model types that no test covers.

The sampler makes its own masks, keys and logits. If a layer does not follow the config, it would sample from another
model without an error. What the trainer computes shows in ``train/logp_difference_mean`` of the first update.
"""

import copy
import math

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from eh_gym.errors import ConfigError
from harness.model.attention import PACKED
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import SampleRequest, sample_all

# The model types whose agreement a test shows.
TESTED: frozenset[str] = frozenset(
    (
        *("gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3"),
        *("qwen3_moe", "smollm3"),
    )
)

_TOLERANCE = 2e-3  # nats; float32 rounds to about 1e-5
_WORDS = 128
_SHARED = 36  # tokens at the beginning of both rows; enough for sampler and trainer to share them
_SAMPLED = 24
_LAYERS = 6  # enough for each kind of layer: in Gemma 3, the sixth is the first to see all tokens
_MOST_PARAMETERS = 500_000_000  # 2 GB
# The largest values in the copy, for entries of the config whose names have one of these words.
_MOST = {
    ("vocab_size",): _WORDS,
    ("token_id",): _WORDS - 1,  # no row has this token
    ("intermediate", "ffn", "d_ff", "n_inner"): 64,
    ("window", "chunk", "index_topk"): 16,
}


@torch.no_grad()
def check_agreement(model: PreTrainedModel) -> str:
    """Compares `TransformersSampler` with the model's own forward pass, unless the model's type is in `TESTED`.

    Two rows of up to 64 tokens go through a copy of the model in float32 on the CPU. The copy has random weights, few
    layers, small feed-forward layers and windows of 16 tokens.

    Returns:
        A note if no copy can be made; else an empty text.
    """
    config = model.config.get_text_config()
    if config.model_type in TESTED:
        return ""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _compare(model, config.model_type, min(int(config.vocab_size), _WORDS) - 1)


def _compare(model: PreTrainedModel, kind: str, words: int) -> str:
    used = model.config._attn_implementation
    original = "sdpa" if used == PACKED else used  # see `choose_attention`
    rng = np.random.default_rng(0)
    shared = rng.integers(words, size=_SHARED).tolist()
    prompts = [shared, shared + rng.integers(words, size=4).tolist()]
    try:
        small = _small_copy(model, original)
        _scores(small, prompts[1])
    except Exception as error:  # a class may need anything in its config or its input
        return (
            f"the sampler could not be compared with the forward pass of the untested model type {kind!r}: no small "
            f"copy of it works ({error})"
        )
    small.set_attn_implementation(used)
    try:
        requests = [SampleRequest(i, prompt, _SAMPLED, seed=i) for i, prompt in enumerate(prompts)]
        samples = sample_all(TransformersSampler(small), requests)
    except Exception as error:
        raise ConfigError(
            f"the transformers sampler can't run the untested model type {kind!r} ({error}); use --sampler vllm, or "
            "another model"
        ) from error
    small.set_attn_implementation(original)
    found = torch.tensor([sample.logprobs for sample in samples])
    right = [_scores(small, prompt + sample.ids)[-_SAMPLED:] for prompt, sample in zip(prompts, samples, strict=True)]
    worst = (found - torch.stack(right)).abs().max().item()
    if not worst <= _TOLERANCE:  # also a NaN
        raise ConfigError(
            f"the transformers sampler computes other log-probabilities than the forward pass of the untested model "
            f"type {kind!r}: in a small copy with random weights they differ by up to {worst:.2g} nats, and "
            f"{_TOLERANCE} are allowed; use --sampler vllm, or another model"
        )
    return ""


def _scores(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """The log-probabilities of a row's tokens but the first, in the model's own forward pass, float32 [tokens - 1]."""
    logps: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(dim=-1)
    return logps[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def _small_copy(model: PreTrainedModel, attention: str) -> PreTrainedModel:
    """A float32 model of the same class with random weights: few layers, narrow ones, short windows."""
    config = copy.deepcopy(model.config)
    for part in (config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))):
        _shrink(part)
    with torch.device("meta"):
        size = type(model)._from_config(copy.deepcopy(config)).num_parameters()
    if size > _MOST_PARAMETERS:
        raise ConfigError(f"it would have {size / 1e9:.1f} billion parameters")
    small: PreTrainedModel = type(model)._from_config(config, dtype=torch.float32, attn_implementation=attention)
    for weight in small.parameters():  # the usual 0.02 would make all tokens about equally likely
        if weight.dim() > 1:
            weight.normal_(0.0, 2 / math.sqrt(weight.shape[-1]))
    small.eval()
    return small


def _shrink(config: PreTrainedConfig) -> None:
    layers = getattr(config, "num_hidden_layers", None)
    if layers:
        kept = min(layers, _LAYERS)
        for name, value in list(vars(config).items()):
            if isinstance(value, (list, tuple)) and len(value) == layers:
                setattr(config, name, value[:kept])
        config.num_hidden_layers = kept
    for name, value in list(vars(config).items()):
        most = next((most for words, most in _MOST.items() if any(word in name for word in words)), None)
        if most and isinstance(value, int) and value > most:
            setattr(config, name, most)
