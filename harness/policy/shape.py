"""Shapes of dense language models. They give the numbers of parameters and activations without loading the model.

It knows the sizes of Qwen2.5 and Qwen3, and any folder whose config.json is
Qwen2's, Qwen3's or Llama's. It never asks a hub, because a plan must need no network. It refuses mixtures of experts and layers
other than attention, because their activations are counted differently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError

__all__ = ["KNOWN", "ModelShape", "head_chunk", "shape_of"]


@dataclass(frozen=True)
class ModelShape:
    """The numbers that determine a dense model's memory and FLOPs.

    Attributes:
        vocab: V, the number of rows of the embedding.
        width: H, the width of the hidden states.
        ffn: F, the width of the feed-forward layers.
        layers: L, the number of layers.
        heads: The number of attention heads.
        kv_heads: The number of heads of the keys and values.
        tied: Whether the output layer shares its weights with the embedding.
        positions: The longest episode in tokens.
        head_width: The width of one head; 0 for width / heads.
        attention_bias: Whether queries, keys and values have a bias, as in Qwen2.
        head_norms: Whether the queries and keys of each head are normalised, as in Qwen3.
    """

    vocab: int
    width: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    positions: int = 32_768
    head_width: int = 0
    attention_bias: bool = True
    head_norms: bool = False

    @property
    def queries(self) -> int:
        """A, the width of the queries: heads x head width."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def keys(self) -> int:
        """KV, the width of the keys, which is also that of the values."""
        return self.queries // self.heads * self.kv_heads

    @property
    def layer_parameters(self) -> int:
        """The parameters of one layer: 2 H A + 2 H KV + 3 H F in matrices, the two norms, and the biases."""
        a, kv = self.queries, self.keys
        matrices = 2 * self.width * a + 2 * self.width * kv + 3 * self.width * self.ffn
        norms = 2 * self.width + (2 * (a // self.heads) if self.head_norms else 0)
        return matrices + norms + (a + 2 * kv if self.attention_bias else 0)

    @property
    def parameters(self) -> int:
        """All parameters: the layers, the last norm, the embedding, and the output layer if it is not tied."""
        return self.layers * self.layer_parameters + self.width + self.vocab * self.width * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """The parameters of LoRA adapters of `rank` for the seven matrices of each layer: rank x (in + out) for each."""
        h, a, kv, f = self.width, self.queries, self.keys, self.ffn
        return self.layers * rank * (2 * (h + a) + 2 * (h + kv) + 3 * (h + f))

    def kv_bytes(self, bytes_each: int) -> int:
        """The bytes of the keys and values of one token in all layers."""
        return 2 * self.layers * self.keys * bytes_each

    def layer_activation_bytes(self, bytes_each: int, lora_rank: int = 0) -> int:
        """The bytes that one layer keeps per token for the backward pass.

        With b bytes per number, these are b (4 H + 3 A + 2 KV + 4 F) + 8 H + 4 heads + 8: both norms keep their input in float32,
        and the attention keeps its sums. Adapters add b (7 rank - 2 H): frozen norms keep less, and each pair of matrices keeps
        the value between them. The norms of heads add (4 + b) (A + KV) + 4 (heads + kv heads), and if they are frozen, b (A + KV)
        less. The formula was counted on transformers' Qwen2 and Qwen3; a test compares them.
        """
        narrow = 4 * self.width + 3 * self.queries + 2 * self.keys + 4 * self.ffn
        if lora_rank:
            narrow += 7 * lora_rank - 2 * self.width
        norms = (4 if lora_rank else 4 + bytes_each) * (self.queries + self.keys) + 4 * (self.heads + self.kv_heads)
        return bytes_each * narrow + 8 * self.width + 4 * self.heads + 8 + (norms if self.head_norms else 0)


# The numbers are from the public config.json of each model.
KNOWN: dict[str, ModelShape] = {
    "Qwen2.5-0.5B": ModelShape(151_936, 896, 4864, 24, 14, 2, tied=True),
    "Qwen2.5-1.5B": ModelShape(151_936, 1536, 8960, 28, 12, 2, tied=True),
    "Qwen2.5-3B": ModelShape(151_936, 2048, 11_008, 36, 16, 2, tied=True),
    "Qwen2.5-7B": ModelShape(152_064, 3584, 18_944, 28, 28, 4, tied=False),
    "Qwen2.5-14B": ModelShape(152_064, 5120, 13_824, 48, 40, 8, tied=False),
    "Qwen3-4B": ModelShape(
        151_936, 2560, 9728, 36, 32, 8, True, 40_960, head_width=128, attention_bias=False, head_norms=True
    ),
    "Qwen3-8B": ModelShape(
        151_936, 4096, 12_288, 36, 32, 8, False, 40_960, head_width=128, attention_bias=False, head_norms=True
    ),
}
# The quick start's model on EH-Cabinet, whose vocabulary has 41 words.
_TINY = ModelShape(41, 64, 192, 2, 2, 2, tied=True, positions=2048)


def head_chunk(words: int, gpu_bytes: float) -> int:
    """The number of tokens that go through the output layer at a time (`harness.policy.head`).

    With each chunk, the weight and its gradient's sum are read again, so larger chunks are faster. A token's logits and their
    gradients take 12 bytes a word, and a chunk may take a twentieth of the GPU's memory. Elsewhere it has as many tokens as have
    2^24 logits. It never has fewer than 512, which a matrix product needs to be fast.

    >>> head_chunk(152_064, 80e9), head_chunk(152_064, 0), head_chunk(50, 0)
    (2048, 512, 335544)
    """
    if not gpu_bytes:
        return max(512, 2**24 // words)
    return max(512, int(gpu_bytes / 20 / (12 * words)) // 512 * 512)


def shape_of(model: str) -> ModelShape:
    """The shape of "tiny", of a known model, of an installed one, or of the model in a local folder.

    Args:
        model: The value of `--model`. A hub id is looked up in `KNOWN` by its name, with or without "-Instruct"; the hub is
            never asked.

    Raises:
        ConfigError: The model is none of these, or is not a dense Qwen2, Qwen3 or Llama.
    """
    if model == "tiny":
        return _TINY
    file = Path(model) / "config.json"
    if file.is_file():
        return _read(file)
    name = model.rsplit("/", 1)[-1].removesuffix("-2507").removesuffix("-Instruct")
    if name in KNOWN:
        return KNOWN[name]
    raise ConfigError(
        f"the shape of {model!r} is not known; give a local folder with a config.json, or one of {', '.join(KNOWN)}"
    )


def _read(file: Path) -> ModelShape:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        kind = values["model_type"]
        biases = [name for name in ("attention_bias", "mlp_bias") if values.get(name)]
        if kind not in ("qwen2", "qwen3", "llama") or biases:
            raise ConfigError(
                f"{file} has the model_type {' with '.join([repr(kind), *biases])}; plans support qwen2, and qwen3 and llama "
                "without attention_bias and mlp_bias"
            )
        return ModelShape(
            vocab=int(values["vocab_size"]),
            width=int(values["hidden_size"]),
            ffn=int(values["intermediate_size"]),
            layers=int(values["num_hidden_layers"]),
            heads=int(values["num_attention_heads"]),
            kv_heads=int(values.get("num_key_value_heads") or values["num_attention_heads"]),
            tied=bool(values.get("tie_word_embeddings", False)),
            positions=int(values["max_position_embeddings"]),
            head_width=int(values.get("head_dim") or 0),
            attention_bias=kind == "qwen2",
            head_norms=kind == "qwen3",
        )
    except ConfigError:  # which is a ValueError, too
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is not a model's config.json ({error!r}); give the model's folder") from error
