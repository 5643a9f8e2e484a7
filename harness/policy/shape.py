"""Shapes of dense language models, counted without loading them: parameters, LoRA's, keys and values, activations.

Known are Qwen2.5's sizes, and any folder whose config.json is Qwen2's or Llama's. Left out: asking a hub, because a plan must
need no network; mixtures of experts and layers other than attention, because their activations are counted otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError

__all__ = ["KNOWN", "ModelShape", "shape_of"]


@dataclass(frozen=True)
class ModelShape:
    """What decides a dense model's memory and FLOPs.

    Attributes:
        vocab: V, rows of the embedding.
        width: H.
        ffn: F, width of the feed-forward layers.
        layers: L.
        heads: Attention heads.
        kv_heads: Heads of the keys and values.
        tied: Whether the output layer is the embedding.
        positions: The longest episode in tokens.
        head_width: Of one head; 0 for width / heads.
        attention_bias: Whether queries, keys and values have a bias, as Qwen2's do.
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

    @property
    def queries(self) -> int:
        """A, heads x head width."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def keys(self) -> int:
        """Width of the keys, and of the values."""
        return self.queries // self.heads * self.kv_heads

    @property
    def layer_parameters(self) -> int:
        """Of one layer: 2 H A + 2 H KV + 3 H F in matrices, the two norms, and the biases."""
        a, kv = self.queries, self.keys
        matrices = 2 * self.width * a + 2 * self.width * kv + 3 * self.width * self.ffn
        return matrices + 2 * self.width + (a + 2 * kv if self.attention_bias else 0)

    @property
    def parameters(self) -> int:
        """All: layers, last norm, embedding, and the output layer where it is not the embedding."""
        return self.layers * self.layer_parameters + self.width + self.vocab * self.width * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Of adapters of `rank` beside the seven matrices of each layer: rank x (in + out)."""
        h, a, kv, f = self.width, self.queries, self.keys, self.ffn
        return self.layers * rank * (2 * (h + a) + 2 * (h + kv) + 3 * (h + f))

    def kv_bytes(self, bytes_each: int) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.keys * bytes_each

    def layer_activation_bytes(self, bytes_each: int, lora_rank: int = 0) -> int:
        """What one layer keeps of a token for the backward pass.

        b (4 H + 3 A + 2 KV + 4 F) + 8 H + 4 heads + 8 with b bytes a number: both norms keep their input in float32, and the
        attention its sums. With adapters b (7 rank - 2 H) more: frozen norms keep less, each pair of matrices what lies between
        them. Counted on transformers' Qwen2; a test compares the two.
        """
        narrow = 4 * self.width + 3 * self.queries + 2 * self.keys + 4 * self.ffn
        if lora_rank:
            narrow += 7 * lora_rank - 2 * self.width
        return bytes_each * narrow + 8 * self.width + 4 * self.heads + 8


# As the public config.json of each states it.
KNOWN: dict[str, ModelShape] = {
    "Qwen2.5-0.5B": ModelShape(151_936, 896, 4864, 24, 14, 2, tied=True),
    "Qwen2.5-1.5B": ModelShape(151_936, 1536, 8960, 28, 12, 2, tied=True),
    "Qwen2.5-7B": ModelShape(152_064, 3584, 18_944, 28, 28, 4, tied=False),
    "Qwen2.5-14B": ModelShape(152_064, 5120, 13_824, 48, 40, 8, tied=False),
}
# The quick start's, on EH-Cabinet: 43 words.
_TINY = ModelShape(43, 64, 192, 2, 2, 2, tied=True, positions=2048)


def shape_of(model: str) -> ModelShape:
    """The shape of "tiny", a known model, or the model in a local folder.

    Args:
        model: As `--model` takes it: a hub id is looked up by its name, with or without "-Instruct", never on the hub.

    Raises:
        ConfigError: The model is neither, or no dense Qwen2 or Llama.
    """
    if model == "tiny":
        return _TINY
    file = Path(model) / "config.json"
    if file.is_file():
        return _read(file)
    name = model.rsplit("/", 1)[-1].removesuffix("-Instruct")
    if name in KNOWN:
        return KNOWN[name]
    raise ConfigError(
        f"the shape of {model!r} is not known; give a local folder with a config.json, or one of {', '.join(KNOWN)}"
    )


def _read(file: Path) -> ModelShape:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        kind = values["model_type"]
        if kind not in ("qwen2", "llama") or values.get("mlp_bias") or values.get("attention_bias"):
            raise ConfigError(
                f"{file} is of model_type {kind!r} with biases of {values.get('attention_bias', 'its own')}; "
                "plans know qwen2, and llama without biases"
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
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is not a model's config.json ({error!r}); give the model's folder") from error
