"""A key-value cache with one row per episode, kept from turn to turn.

transformers' DynamicCache grows by concatenation: every new token copies the whole cache, and rows of different length
leave gaps that every later token attends over. Here each row is written at its own position in a buffer that is
allocated once. A forward pass over adjacent rows reads a view, without a copy.

The cache keeps every token: layers with a sliding window get a mask. It has no recurrent state, so
`TransformersSampler` refuses models that need one.
"""

import math
import mmap
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """Keys and values of `rows` episodes, each [rows, kv_heads, capacity, head_dim] per layer, allocated on first use.

    Before each forward pass, `place` says which rows take part and where their new tokens go. The last column takes
    padding tokens, and no mask ever lets a token attend to it.
    """

    def __init__(self, longest: int) -> None:
        super().__init__(layers=[])
        self._longest = longest
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = 0
        self._capacity = 0
        self._taken: slice | Tensor = slice(0, 0)
        self._places: tuple[Tensor, Tensor] | None = None
        self._width = 0

    @property
    def scrap_column(self) -> int:
        return self._capacity - 1

    def reserve(self, rows: int, columns: int) -> None:
        if rows <= self._rows and columns < self._capacity:
            return
        if rows > self._rows:  # doubled, because episodes come one by one and each growth copies everything
            self._rows = max(rows, 2 * self._rows)
        if columns >= self._capacity:
            self._capacity = max(columns + 1, min(2 * self._capacity, self._longest + 1))
        self._keys = [self._grown(old) for old in self._keys]
        self._values = [self._grown(old) for old in self._values]

    def release(self) -> None:
        self._keys, self._values = [], []

    def place(self, rows: slice | Tensor, columns: Tensor, width: int) -> None:
        """Sets up the next forward pass.

        Args:
            rows: The n rows that take part: a slice with both ends, which makes no copy, or int64 [n].
            columns: int64 [n, q], the columns where each row's q new tokens are written.
            width: The number of columns that are attended over.
        """
        index = torch.arange(rows.start, rows.stop, device=columns.device) if isinstance(rows, slice) else rows
        self._taken, self._places, self._width = rows, (index[:, None], columns), width

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores [n, kv_heads, q, head_dim] and returns [n, kv_heads, width, head_dim]. The model's layers call it."""
        while len(self._keys) <= layer_idx:
            self._keys.append(self._like(key_states))
            self._values.append(self._like(value_states))
        return (
            self._write(self._keys[layer_idx], key_states),
            self._write(self._values[layer_idx], value_states),
        )

    def swap_rows(self, a: int, b: int, length: int) -> None:
        for buffer in (*self._keys, *self._values):
            kept = buffer[a, :, :length].clone()
            buffer[a, :, :length] = buffer[b, :, :length]
            buffer[b, :, :length] = kept

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        for buffer in (*self._keys, *self._values):
            buffer[target, :, start:stop] = buffer[source, :, start:stop]

    def _write(self, buffer: Tensor, states: Tensor) -> Tensor:
        assert self._places is not None, "place() comes before the forward pass"
        rows, columns = self._places
        buffer[rows, :, columns] = states.transpose(1, 2)
        return buffer[self._taken, :, : self._width]

    def _like(self, states: Tensor) -> Tensor:
        _, heads, _, dim = states.shape
        # Zeros instead of empty memory: a masked column still enters the weighted sum with weight 0, and 0 * NaN is
        # NaN.
        return _zeros(states, self._rows, heads, self._capacity, dim)

    def _grown(self, old: Tensor) -> Tensor:
        rows, heads, columns, dim = old.shape
        new = _zeros(old, self._rows, heads, self._capacity, dim)
        new[:rows, :, :columns] = old
        return new


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros as `like`. On a CPU, the system fills a page when it is first used, where torch would fill all."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, math.prod(shape) * like.element_size())
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)
