"""The policy: a causal language model, its tokenizer and its chat format."""

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch._functorch.config
from huggingface_hub import model_info, try_to_load_from_cache
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.distributed.tensor import DTensor
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from eh_gym.errors import ConfigError
from envs.cache import cache_dir
from harness.chat.chat import ChatFormat
from harness.model.attention import PACKED, choose_attention, keep_outputs, no_mask, packed_attention
from harness.model.batch import Batch, Tokens, collate, deal, microbatches, pack, padded_microbatches
from harness.model.head import Head, token_scores
from harness.model.lora import has_lora, plain_parameters
from harness.settings.model import Model

STORED_SHARE = 0.7
"""In a feed-forward part with a gate, two of three tensors that torch.compile stores are outputs of products."""

_GIVE = (
    "give a folder with config.json, model.safetensors and tokenizer files, or a hub id; harness.grpo can also make a "
    "new model, with 'tiny'"
)


@runtime_checkable
class _Sharded(Protocol):
    """A model that `Ranks.shard` has sharded. Its method gathers the weights that `score_batch` needs."""

    def score_batch(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]: ...


@dataclass
class Policy:
    """A language model that acts."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat

    @property
    def packs(self) -> bool:
        return bool(self.model.config._attn_implementation == PACKED)

    def batch(self, trajectories: Sequence[Tokens]) -> Batch:
        if self.packs:
            return pack(trajectories, device=self.model.device)
        # Padding is never attended to, so any id will do if the tokenizer has no padding token.
        return collate(trajectories, pad_id=int(self.tokenizer.pad_token_id or 0), device=self.model.device)

    def batches(
        self, trajectories: Sequence[Tokens], max_tokens: int, *, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[list[int], Batch]]:
        """Splits the episodes into forward passes of at most `max_tokens` tokens, including padding, or of one episode.

        Every rank gets the same number of passes. If they do not divide evenly, some ranks get an idle pass, because
        sharded weights need every rank in every pass.

        Yields:
            The indices of a pass's episodes, and their batch. An idle pass has no index, and its batch must not count.
        """
        lengths = [len(t.ids) for t in trajectories]
        limit = max_tokens if ranks == 1 else min(max_tokens, -(-sum(lengths) // ranks))
        parts = microbatches(trajectories, limit) if self.packs else list(padded_microbatches(lengths, limit))
        for part in parts if ranks == 1 else deal(parts, lengths, rank, ranks):
            yield part, self.batch([trajectories[i] for i in part or [lengths.index(min(lengths))]])

    def score(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the written tokens under the present weights, at this temperature.

        Returns:
            ``logp`` and ``entropy``, both float32 [B, A], in nats; 0 outside the batch's mask.
        """
        assert batch.segments is None or self.packs, "a packed batch needs packed attention"
        if isinstance(self.model, _Sharded):
            return self.model.score_batch(batch, temperature)
        return score_batch(self.model, batch, temperature)

    @property
    def recomputed_layers(self) -> list[Any]:
        return [layer for layer in self.model.modules() if isinstance(layer, GradientCheckpointingLayer)]

    def recompute(self, *, kept: int = 0, stored: int = 0) -> None:
        """Makes the backward pass compute the layers' activations again, instead of storing them.

        The first `kept` layers store the output of attention's kernel all the same, and the first `stored` store
        everything.
        """
        model = self.model  # later versions of transformers warn about the second name
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        for i, layer in enumerate(self.recomputed_layers):
            layer.gradient_checkpointing = i >= stored
            if i < kept:
                layer._gradient_checkpointing_func = partial(
                    layer._gradient_checkpointing_func, context_fn=keep_outputs
                )

    def compile_layers(self, stored_share: float = STORED_SHARE) -> None:
        """Compiles the parts of each layer (norms, attention, feed-forward) into fused kernels.

        The layer itself is not compiled, so that FSDP2 and checkpointing can wrap it. All layers share one compiled
        code, for any number of tokens. A copy of the model is not compiled. What was compiled is kept in the cache
        folder, unless ``TORCHINDUCTOR_CACHE_DIR`` names another one: torch's own, in /tmp, ends with a container.

        For the backward pass, the parts store the outputs of their matrix products and of attention, and compute what
        lies between them again: the gradients are the same to the last bit. `stored_share` is the share of what they
        would store otherwise.
        """
        torch._functorch.config.activation_memory_budget = stored_share
        own = default_cache_dir()  # which torch puts into the variable when it is imported
        if os.environ.get("TORCHINDUCTOR_CACHE_DIR", own) == own:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_dir() / "inductor")
        if self.packs:  # else each micro-batch, with other lengths, would be compiled anew
            AttentionInterface.register(PACKED, torch.compiler.disable(packed_attention))
        for layer in self.model.base_model.get_submodule("layers").children():
            for part in layer.children():
                part.compile(dynamic=True)

    def save(self, folder: Path, *, dtype: torch.dtype | None = None, write: bool = True) -> None:
        """Writes a Hugging Face folder that ``from_pretrained`` loads. Adapters are merged into the weights.

        If the model is sharded, every rank must call this, and one of them has `write`. `dtype` None keeps the weights'
        type.
        """
        sharded = any(isinstance(p, DTensor) for p in self.model.parameters())
        if has_lora(self.model) or sharded:
            weights = {}
            for name, weight in plain_parameters(self.model, dtype):
                if write:
                    weights[name] = weight.cpu().contiguous()
            if write:
                config = copy.deepcopy(self.model.config)
                # `fully_shard` renames the class.
                config.architectures = [type(self.model).__name__.removeprefix("FSDP")]
                config.save_pretrained(folder)
                save_file(weights, folder / "model.safetensors", {"format": "pt"})
                if self.model.can_generate():
                    self.model.generation_config.save_pretrained(folder)
        elif write:
            self.model.save_pretrained(folder)
        if write:
            self.tokenizer.save_pretrained(folder)


def score_batch(model: PreTrainedModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    packed = batch.segments is not None
    segments = {"segments": batch.segments, "attention_mask": no_mask(batch.ids.device)} if packed else {}
    states = model.base_model(
        input_ids=batch.ids, position_ids=batch.position_ids, use_cache=False, **segments
    ).last_hidden_state
    hidden = states.flatten(0, 1)[batch.sources]
    logp, entropy = token_scores(hidden, batch.targets, Head.of(model), temperature)
    empty = logp.new_zeros(batch.action_mask.shape)
    return tuple(empty.masked_scatter(batch.action_mask, scores) for scores in (logp, entropy))  # type: ignore[return-value]


def load_policy(
    path: str | Path,
    settings: Model | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    packing: bool = True,
) -> Policy:
    """Loads a Hugging Face folder or a hub id. With `packing` it trains on packed episodes, if the model can."""
    if (Path(path) / "versions.json").is_file():
        raise ConfigError(f"{path} is the folder of a run; did you mean {Path(path) / 'model'}?")
    _find(path)
    try:
        tokenizer = _load_tokenizer(path)
        config = _without_dropout(AutoConfig.from_pretrained(path))
        _refuse_longrope(path, config)
        model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype)
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: the shapes of the weights do not fit config.json
        raise ConfigError(
            f"the model in {str(path)!r} can't be loaded ({str(error).splitlines()[0]}); if its files are damaged, "
            "copy or download them again"
        ) from error
    except (OSError, ValueError) as error:  # transformers raises ValueError for a folder without tokenizer files
        raise ConfigError(
            f"no model can be loaded from {str(path)!r} ({str(error).splitlines()[0]}); {_GIVE}"
        ) from error
    torch.nn.Module.to(model, torch.device(device))
    choose_attention(model, packing=packing)
    ends = getattr(model.generation_config, "eos_token_id", None)
    stop_ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return Policy(model, tokenizer, ChatFormat(tokenizer, settings or Model(), stop_ids=stop_ids))


def _find(path: str | Path) -> None:
    """Raises ConfigError at once for a model that is not there: transformers would ask an unreachable hub for a minute.

    A text that begins like a path, has two slashes, or lies in a folder is no hub id, so the hub is not asked.
    """
    name, folder = str(path), Path(path)
    if folder.is_dir():
        return
    inside = "/" in name and folder.parent.is_dir()
    if inside or isinstance(path, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        held = sorted(f.name for f in folder.parent.iterdir() if f.is_dir()) if inside else []
        there = f"; {folder.parent}/ holds {', '.join([*held[:8], *(['...'] if held[8:] else [])])}" if held else ""
        raise ConfigError(f"no folder {name}{there}; give the folder of a model, such as runs/NAME/model, or a hub id")
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        model_info(name, timeout=10)
    except Exception as error:  # of whichever HTTP client; other answers, such as of a mirror, are left to transformers
        unreachable = isinstance(error, ConnectionError) or "Connect" in type(error).__name__
        if unreachable or isinstance(error, RepositoryNotFoundError):
            why = str(error).splitlines()[0] if unreachable else "it is not there, or needs a token"
            raise ConfigError(f"no folder {name}, and the hub gives no such model ({why}); {_GIVE}") from error


def _without_dropout(config: PreTrainedConfig) -> PreTrainedConfig:
    """Returns `config` with every dropout 0. Otherwise trainer and sampler would compute other log-probabilities."""
    text = config.get_text_config()
    for name, value in vars(text).items():
        if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
            setattr(text, name, 0.0)
    return config


def _refuse_longrope(path: str | Path, config: PreTrainedConfig) -> None:
    """Refuses two sets of rotary frequencies, between which transformers and vLLM choose in different ways."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        raise ConfigError(
            f"the model in {str(path)!r} has two sets of rotary frequencies (LongRoPE, as Phi-3's models of 128k), so "
            "an episode's log-probabilities would change with the others in its batch; take another model"
        )


def _load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer as it was saved, in the generic class if the folder names it, as those of the tiny models do.

    For Qwen2 and others, AutoTokenizer takes the model's usual class, which replaces the saved word splitting.
    """
    if get_tokenizer_config(path).get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast"):
        saved: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(path)
        return saved
    return AutoTokenizer.from_pretrained(path)
