"""A short comparison of sampler and trainer with a model's own forward pass, for model types outside a tested table.

Sampler and trainer write their own masks, keys and logits. For a layer that does something else than the config says, their
log-probabilities would be wrong without an error.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from eh_gym.errors import ConfigError
from harness.policy.attention import PACKED
from harness.policy.batch import collate, pack
from harness.policy.policy import score_batch
from harness.policy.rotary import settle_frequencies
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import Sample, SampleRequest, sample_all
from harness.types.trajectory import TokenSequence

__all__ = ["TESTED", "check_agreement"]

# The model types for which a sweep found at most 2e-3 nats.
TESTED: frozenset[str] = frozenset(
    (
        *("apertus", "arcee", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4"),
        *("gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss"),
        *("granite", "granitemoe", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama", "minimax_m2", "ministral"),
        *("mistral", "mixtral", "olmo2", "olmo3", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
        *("seed_oss", "smollm3"),
    )
)

_TOLERANCE = 2e-3  # nats; float32 rounds to about 1e-5
_WORDS = 128
_SHARED = 36  # tokens that both rows begin with: enough for sampler and trainer to compute them once
_SAMPLED = 24
_LEAST_LAYERS, _MOST_LAYERS = 4, 8
_MOST_PARAMETERS = 500_000_000  # 2 GB
# The most that an entry of a config with one of these words in its name may be in the copy.
_MOST = {
    ("vocab_size",): _WORDS,
    ("token_id",): _WORDS - 1,  # which no row has
    ("intermediate", "ffn", "d_ff", "n_inner"): 64,
    ("window", "chunk", "index_topk"): 16,
}


@torch.no_grad()
def check_agreement(model: PreTrainedModel, *, sampled: bool = True, trained: bool = True) -> str:
    """Compares sampler and trainer with the model's own forward pass, unless the model's type is in `TESTED`.

    Two rows of up to 64 tokens go through a copy of the model in float32 on the CPU, with the widths of its attention, but few
    layers, small feed-forward layers, windows of 16 tokens, and random weights.

    Args:
        model: The policy's model, with packed attention if packed rows are trained on. Its weights are not read.
        sampled: Whether `TransformersSampler` samples with it.
        trained: Whether it is trained.

    Returns:
        A note if no copy can be made; else an empty text.

    Raises:
        ConfigError: A log-probability differs by more than 0.002 nats, or can't be computed. The message says which, by how much.
    """
    config = model.config.get_text_config()
    kind, words = config.model_type, min(int(config.vocab_size), _WORDS) - 1
    if kind in TESTED:
        return ""
    used = model.config._attn_implementation
    own = "sdpa" if used == PACKED else used  # see `can_pack`
    rng = np.random.default_rng(0)
    shared = rng.integers(words, size=_SHARED).tolist()
    rows = [shared + rng.integers(words, size=own).tolist() for own in (1, 5)]
    try:
        small = _small_copy(model, own)
        _scores(small, rows[0])
    except Exception as error:  # whatever the class asks of its config or its input
        return (
            f"sampler and trainer could not be compared with the forward pass of the untested model type {kind!r}: no small copy "
            f"of it works ({_first_line(error)})"
        )
    small.set_attn_implementation(used)
    samples: list[Sample] = []
    if sampled:
        requests = [SampleRequest(i, row, _SAMPLED, seed=i) for i, row in enumerate(rows)]
        with _errors_of("the transformers sampler", kind, "--sampler vllm"):
            samples = sample_all(TransformersSampler(small), requests)
    continued = [s.ids for s in samples] or [rng.integers(words, size=_SAMPLED).tolist() for _ in rows]
    rows = [row + more for row, more in zip(rows, continued, strict=True)]
    small.set_attn_implementation(own)
    right = [_scores(small, row) for row in rows]
    for sample, expected in zip(samples, right, strict=False):
        _compare(
            "the transformers sampler", kind, "--sampler vllm", torch.tensor(sample.logprobs), expected[-_SAMPLED:]
        )
    if trained:
        small.set_attn_implementation(used)
        layout, instead = ("packed", "--no-packing") if used == PACKED else ("padded", "")
        sequences = [TokenSequence(0, row, [0] + [1] * (len(row) - 1), [0.0] * len(row)) for row in rows]
        with _errors_of(f"the trainer on {layout} rows", kind, instead):
            found, _ = score_batch(small, pack(sequences) if used == PACKED else collate(sequences, pad_id=0), 1.0)
        for logps, expected in zip(found, right, strict=True):
            _compare(f"the trainer on {layout} rows", kind, instead, logps[: len(expected)], expected)
    return ""


def _scores(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """The log-probabilities of a row's tokens but the first in the model's own forward pass, float32 [tokens - 1]."""
    logps: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(dim=-1)
    return logps[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def _compare(part: str, kind: str, instead: str, found: Tensor, expected: Tensor) -> None:
    worst = (found - expected).abs().max().item()
    if not worst <= _TOLERANCE:  # also a NaN
        raise ConfigError(
            f"{part} computes other log-probabilities than the forward pass of the untested model type {kind!r}: in a small copy "
            f"with random weights they differ by up to {worst:.2g} nats, and {_TOLERANCE} are allowed; use "
            f"{f'{instead}, or ' if instead else ''}another model"
        )


@contextmanager
def _errors_of(part: str, kind: str, instead: str) -> Iterator[None]:
    """Turns what a model's code raises into a sentence."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{part} can't run the untested model type {kind!r} ({type(error).__name__}: {_first_line(error)}); use "
            f"{f'{instead}, or ' if instead else ''}another model"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _small_copy(model: PreTrainedModel, attention: str) -> PreTrainedModel:
    """A model of the same class with random weights in float32: few layers, narrow feed-forward layers, short windows."""
    config = copy.deepcopy(model.config)
    for part in (config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))):
        _shrink(part)
    with torch.device("meta"):
        size = type(model)._from_config(copy.deepcopy(config)).num_parameters()
    if size > _MOST_PARAMETERS:
        raise ConfigError(f"it would have {size / 1e9:.1f} billion parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small: PreTrainedModel = type(model)._from_config(config, dtype=torch.float32, attn_implementation=attention)
        for weight in small.parameters():  # the usual 0.02 would make all tokens about equally likely
            if weight.dim() > 1:
                weight.normal_(0.0, 2 / math.sqrt(weight.shape[-1]))
    settle_frequencies(small)
    small.eval()
    return small


def _shrink(config: PreTrainedConfig) -> None:
    """Keeps the first layers, enough to have each kind, and bounds what makes a layer large or hides its window."""
    layers = getattr(config, "num_hidden_layers", None)
    own = vars(config)
    if layers:
        lists = [name for name, value in own.items() if isinstance(value, (list, tuple)) and len(value) == layers]
        kinds = [{str(x): i for i, x in reversed(list(enumerate(own[name])))} for name in lists]
        kept = min(
            layers, max(_LEAST_LAYERS, min(_MOST_LAYERS, max((max(at.values()) + 1 for at in kinds), default=0)))
        )
        for name in lists:
            setattr(config, name, own[name][:kept])
        config.num_hidden_layers = kept
    for name, value in list(vars(config).items()):
        most = next((most for words, most in _MOST.items() if any(word in name for word in words)), None)
        if most and isinstance(value, int) and value > most:
            setattr(config, name, most)
