"""Attention over a packed row: many episodes one after the other, without padding. No episode attends to another.

transformers' models call this function through their attention interface, under the name `PACKED`. A call without
`Segments`, such as a sampler's, goes to transformers' own SDPA. On a GPU in half precision, one kernel computes all
segments: torch's `varlen_attn`, which is FlashAttention (torch 2.12 is the first that allows fewer key-value heads).
Otherwise each segment is one call of SDPA. So no work is done for pairs of tokens that do not see each other. A block
mask would do the same, but its memory grows with the square of the row's length.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import (
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
)
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED = "packed"


@dataclass(frozen=True)
class Segments:
    """The segments of a packed row of T tokens.

    Attributes:
        lengths: The number of tokens of each segment, in order; their sum is T.
        parents: For each segment, the index of the earlier segment that it continues and whose tokens it sees; -1 for
            none. A parent has no parent itself.
        device: The device of the row.
    """

    lengths: Sequence[int]
    parents: Sequence[int]
    device: torch.device

    @cached_property
    def _varlen(self) -> tuple[Tensor, Tensor, int, int, Tensor | None]:
        """Cumulative lengths of queries and keys, the longest of each, and the keys' indices (None: all)."""
        starts = [0, *accumulate(self.lengths)]
        before = [self.lengths[parent] if parent >= 0 else 0 for parent in self.parents]
        keys = [length + shared for length, shared in zip(self.lengths, before, strict=True)]
        index = None
        if any(before):
            stretches = [
                torch.arange(starts[i], starts[i] + self.lengths[i])
                for child, parent in enumerate(self.parents)
                for i in ((parent, child) if parent >= 0 else (child,))
            ]
            index = torch.cat(stretches).to(self.device)
        queries, keyed = (
            torch.tensor([0, *accumulate(n)], dtype=torch.int32, device=self.device) for n in (self.lengths, keys)
        )
        return queries, keyed, max(self.lengths), max(keys), index


def no_mask(device: torch.device) -> Tensor:
    """The attention mask of a packed row, whose segments say which tokens see each other; bool [1, 1, 1, 1].

    transformers makes no mask of its own if it gets one with four dimensions. To make one, it would wait for the GPU.
    """
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def attention_windows(config: PreTrainedConfig) -> list[int | None] | None:
    """For each layer, the number of tokens that a token sees, itself included; None for all of them.

    In a config, `layer_types` names the layers that have a window. Without it, `sliding_window` holds for all layers,
    as in Mistral and Phi-3. A key that the config's class does not declare is a left-over of another model, such as the
    `sliding_window` of a Mistral that was turned into a Llama.

    Returns:
        None if some layer is neither full nor windowed attention, but recurrent, chunked or compressed.

    >>> from transformers import MistralConfig
    >>> attention_windows(MistralConfig(num_hidden_layers=2, sliding_window=4096))
    [4096, 4096]
    """
    declared = getattr(config, "__dataclass_fields__", {})
    window = (getattr(config, "sliding_window", None) or None) if "sliding_window" in declared else None
    kinds = getattr(config, "layer_types", None) if "layer_types" in declared else None
    if not kinds:
        return [window] * int(config.num_hidden_layers)
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _can_pack(model: PreTrainedModel) -> bool:
    """Whether only attention connects the model's tokens, and only through transformers' interface.

    Recurrent and convolutional layers would carry one episode's state into the next. For sinks, which SDPA can't
    compute, transformers takes eager attention. ``train/logp_difference_mean`` shows what else is not computed here.
    """
    config = model.config.get_text_config()
    return (
        bool(model._supports_attention_backend)
        and not model._is_stateful
        and config._attn_implementation in ("sdpa", PACKED)
        and attention_windows(config) is not None
    )


def choose_attention(model: PreTrainedModel, *, packing: bool = True) -> None:
    """Takes packed attention if the model can, and eager attention for soft caps, which SDPA would leave out."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    elif packing and _can_pack(model):
        model.set_attn_implementation(PACKED)


_FLASH = {"FA3": (9,), "FA4": (9, 10)}  # the compute capabilities of their GPUs


def choose_flash_attention(device: str, config: PreTrainedConfig, say: Callable[[str], None]) -> str:
    """Takes FlashAttention 3, else 4, if its package is installed and works; else torch keeps its own, 2.

    Both passes are tried at once, with heads of the model's size that share keys and with a window. A package for
    another torch would otherwise fail at the first update, after the evaluation and the rollout. `say` hears what takes
    long.

    Returns:
        What was chosen and why, for the user; "" without a GPU.
    """
    if torch.device(device).type != "cuda":
        return ""
    reasons: list[str] = []
    for name, capabilities in _FLASH.items():
        if torch.cuda.get_device_capability(device)[0] not in capabilities:
            continue
        try:
            activate_flash_attention_impl(name)
            if name == "FA4":
                # The compiler of its kernels warns of an argument that is empty here.
                warnings.filterwarnings("ignore", "Argument aux_data", UserWarning)
                say("FlashAttention 4 makes its kernels, which takes a quarter of a minute")
            _try_varlen(device, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
            return ", ".join([f"{name} computes the attention", *reasons])
        except Exception as error:  # whatever a package raises that does not fit
            if current_flash_attention_impl():
                restore_flash_attention_impl()
            reasons.append(f"{name} does not work ({(str(error) or type(error).__name__).splitlines()[0]})")
    return ", ".join(["FA2 computes the attention", *(reasons or ["the newest for this GPU"])])


def _try_varlen(device: str, size: int) -> None:
    for window in (None, 4):
        query, key, value = (
            torch.ones(1, heads, 16, size, dtype=torch.bfloat16, device=device, requires_grad=True)
            for heads in (4, 2, 2)
        )
        out = _varlen(query, key, value, None, window, Segments((8, 8), (-1, -1), query.device))
        out.sum().backward()
        assert query.grad is not None
        if not bool(query.grad.isfinite().all()):  # waits for the kernel
            raise RuntimeError("its gradient is not finite")


def keep_outputs() -> Any:
    """Contexts for `torch.utils.checkpoint` that keep the output of attention's kernel instead of computing it again.

    In a long episode it costs more for its size than anything else in a layer: b A + 4 heads bytes a token. On a GPU
    this works in half precision.
    """
    from torch.nn.attention.varlen import varlen_attn  # noqa: F401 - registers its operation

    ops = torch.ops
    return create_selective_checkpoint_contexts(
        [
            ops.torch_attn._varlen_attn.default,
            ops.aten._scaled_dot_product_flash_attention.default,
            ops.aten._scaled_dot_product_efficient_attention.default,
            ops.aten._scaled_dot_product_cudnn_attention.default,
            ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        ]
    )


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    segments: Segments | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment and to its parent, with the signature of transformers' interface.

    Args:
        module: The layer.
        query: [1, heads, T, dim].
        key: [1, kv_heads, T, dim]; `heads` is a multiple of `kv_heads`.
        value: [1, kv_heads, T, dim].
        attention_mask: Must be `no_mask` or None with segments.
        dropout: 0, by `load_policy`.
        scaling: The factor of the scores; by default 1 / sqrt(dim).
        sliding_window: As in `attention_windows`.
        segments: The segments of the row; None calls transformers' own SDPA.
        **rest: For transformers' SDPA.

    Returns:
        The output, [1, T, heads, dim], and None in place of the attention weights.
    """
    if segments is None:
        grouped = query.shape[1] != key.shape[1] and not query.is_cuda and not dropout
        if grouped and attention_mask is not None and attention_mask.ndim == 4:
            # On a CPU, SDPA would copy the keys for each head.
            return _grouped(query, key, value, attention_mask, scaling), None
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            **rest,
        )
    if _fits_varlen(query, value):
        return _varlen(query, key, value, scaling, sliding_window, segments)[None], None
    grouped = query.shape[1] != key.shape[1]
    if grouped and query.is_cuda:
        # SDPA's memory-efficient kernel takes no groups of heads. With enable_gqa the call would go to the kernel that
        # stores every score: 28 GiB for 16k tokens.
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        grouped = False
    lengths = list(segments.lengths)
    queries, keys, values = (x.split(lengths, dim=2) for x in (query, key, value))
    outputs = []
    for i, parent in enumerate(segments.parents):
        k, v = keys[i], values[i]
        if parent >= 0:
            k, v = torch.cat([keys[parent], k], dim=2), torch.cat([values[parent], v], dim=2)
        length, seen = lengths[i], k.shape[2]
        mask: Any = None
        if sliding_window is not None and seen > sliding_window:
            mask = _window(length, seen, sliding_window, query.device)
        elif parent >= 0:
            # torch's mask needs no memory on a GPU. It can't be made in `keep_outputs`, which is not for float32 there.
            mask = causal_lower_right(length, seen) if query.is_cuda else _window(length, seen, seen, query.device)
        out = scaled_dot_product_attention(
            queries[i], k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        outputs.append(out.transpose(1, 2))
    return torch.cat(outputs, dim=1), None


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """[n, q, heads, dim], with heads that share keys as further queries. `mask` is [n, 1, q, width]."""
    n, heads, q, dim = query.shape
    groups = heads // key.shape[1]
    out = scaled_dot_product_attention(
        query.reshape(n, -1, groups * q, dim), key, value, attn_mask=mask.repeat(1, 1, groups, 1), scale=scaling
    )
    return out.reshape(n, heads, q, dim).transpose(1, 2).contiguous()


def _fits_varlen(query: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention can compute it: half precision, heads of at most 256, values as wide as the keys."""
    dim = query.shape[-1]
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and half and dim <= 256 and dim % 8 == 0 and dim == value.shape[-1]


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, sliding_window: int | None, segments: Segments
) -> Tensor:
    """All segments in one kernel; [T, heads, dim]. The kernel aligns its causal mask to the lower right."""
    from torch.nn.attention.varlen import varlen_attn

    queries, keyed, longest_q, longest_k, index = segments._varlen
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if index is not None:
        k, v = k[index], v[index]
    left = -1 if sliding_window is None else sliding_window - 1
    out = varlen_attn(
        q, k, v, queries, keyed, longest_q, longest_k, scale=scaling, window_size=(left, 0), enable_gqa=True
    )
    assert isinstance(out, Tensor)
    return out


def _window(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Bool [queries, keys]: each of the last `queries` of `keys` tokens sees itself and the `window` - 1 before it."""
    last = torch.arange(keys - queries, keys, device=device)[:, None]
    at = torch.arange(keys, device=device)
    return (at <= last) & (at > last - window)


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
