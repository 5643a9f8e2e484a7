"""Compares sampler and trainer with a model's own forward pass, for model types that no test covers.

Sampler and trainer make their own masks, keys and logits. If a layer does not follow the config, or behaves differently
in training, their log-probabilities would be wrong without an error.
"""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from eh_gym.errors import ConfigError
from harness.model.attention import PACKED
from harness.model.batch import collate, pack
from harness.model.policy import score_batch
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import SampleRequest, sample_all
from harness.types.trajectory import TokenSequence

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
def check_agreement(model: PreTrainedModel, *, sampled: bool = True, trained: bool = True) -> str:
    """Compares sampler and trainer with the model's own forward pass, unless the model's type is in `TESTED`.

    Two rows of up to 64 tokens go through a copy of the model in float32 on the CPU. The copy has random weights, few
    layers, small feed-forward layers and windows of 16 tokens.

    Args:
        model: The policy's model, with packed attention if it trains on packed rows. Its weights are not read.
        sampled: Whether `TransformersSampler` samples with it.
        trained: Whether it is trained.

    Returns:
        A note if no copy can be made; else an empty text.
    """
    config = model.config.get_text_config()
    if config.model_type in TESTED:
        return ""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _compare(model, config.model_type, min(int(config.vocab_size), _WORDS) - 1, sampled, trained)


def _compare(model: PreTrainedModel, kind: str, words: int, sampled: bool, trained: bool) -> str:
    used = model.config._attn_implementation
    original = "sdpa" if used == PACKED else used  # see `choose_attention`
    rng = np.random.default_rng(0)
    shared = rng.integers(words, size=_SHARED).tolist()
    rows = [shared + rng.integers(words, size=n).tolist() for n in (_SAMPLED, _SAMPLED + 4)]
    try:
        small = _small_copy(model, original)
        right = [_scores(small, row) for row in rows]
    except Exception as error:  # a class may need anything in its config or its input
        return (
            f"sampler and trainer could not be compared with the forward pass of the untested model type {kind!r}: no "
            f"small copy of it works ({error})"
        )

    def check(part: str, instead: str, found_and_right: Callable[[], list[tuple[Tensor, Tensor]]]) -> None:
        small.set_attn_implementation(used)
        try:
            worst = torch.cat([(found - right).abs() for found, right in found_and_right()]).max().item()
        except Exception as error:
            raise ConfigError(
                f"{part} can't run the untested model type {kind!r} ({error}); use {instead}another model"
            ) from error
        if not worst <= _TOLERANCE:  # also a NaN
            raise ConfigError(
                f"{part} computes other log-probabilities than the forward pass of the untested model type {kind!r}: "
                f"in a small copy with random weights they differ by up to {worst:.2g} nats, and {_TOLERANCE} are "
                f"allowed; use {instead}another model"
            )

    def of_sampler() -> list[tuple[Tensor, Tensor]]:
        requests = [SampleRequest(i, row[: i - _SAMPLED], _SAMPLED, seed=i) for i, row in enumerate(rows)]
        samples = sample_all(TransformersSampler(small), requests)
        small.set_attn_implementation(original)
        grown = [[*request.prompt_ids, *sample.ids] for request, sample in zip(requests, samples, strict=True)]
        return [
            (torch.tensor(sample.logprobs), _scores(small, ids)[-_SAMPLED:])
            for sample, ids in zip(samples, grown, strict=True)
        ]

    def of_trainer() -> list[tuple[Tensor, Tensor]]:
        small.train()  # in which some routers draw experts at random
        sequences = [TokenSequence(0, row, [0] + [1] * (len(row) - 1), [0.0] * len(row)) for row in rows]
        trained_logps, _ = score_batch(small, pack(sequences) if used == PACKED else collate(sequences, pad_id=0), 1.0)
        return [(logps[: len(expected)], expected) for logps, expected in zip(trained_logps, right, strict=True)]

    if sampled:
        check("the transformers sampler", "--sampler vllm, or ", of_sampler)
    if trained and used == PACKED:
        check("the trainer on packed rows", "--no-packing, or ", of_trainer)
    elif trained:
        check("the trainer on padded rows", "", of_trainer)
    return ""


def _scores(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """The log-probabilities of all tokens of a row but the first, in the model's own forward pass, float32 [tokens -
    1].
    """
    logps: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(dim=-1)
    return logps[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def _small_copy(model: PreTrainedModel, attention: str) -> PreTrainedModel:
    """A model of the same class with random weights in float32: few layers, narrow feed-forward layers, short
    windows.
    """
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
