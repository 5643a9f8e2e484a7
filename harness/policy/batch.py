"""Episodes as tensors: which go through the model together, and how they lie there.

`pack` puts them one behind the other in a single row, without padding. The tokens that episodes of a group begin with in common,
their task's prompt for the most part, are in the row once, where they are many enough. `collate` gives each episode a row of its
own, padded on the right, for models that can't be packed. Either way only the tokens that the model wrote are scored, and what is
known of those is [B, A]: B episodes with up to A such tokens each. Left out: the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.policy.attention import Segments
from harness.types.trajectory import Trajectory

__all__ = ["Batch", "collate", "deal", "fill", "microbatches", "pack", "padded_microbatches"]

# Shorter common beginnings are computed in each episode: below this the shared one gains less than its attention costs.
_LEAST_SHARED = 32


@dataclass(frozen=True)
class Batch:
    """B episodes with N written tokens in sum, at most A in one.

    Attributes:
        ids: int64 [R, S]; packed, R is 1.
        position_ids: int64 [R, S], each token's place in its episode.
        segments: What lies in the packed row; None for padded rows.
        sources: int64 [N], for each written token the place in the flattened `ids` that it is predicted from.
        targets: int64 [N], the written tokens, episode by episode.
        action_mask: bool [B, A], which of A places hold a written token: the first ones.
        logprobs: float32 [B, A], of the written tokens, as sampled; 0 elsewhere.
    """

    ids: Tensor
    position_ids: Tensor
    segments: Segments | None
    sources: Tensor
    targets: Tensor
    action_mask: Tensor
    logprobs: Tensor


def pack(trajectories: Sequence[Trajectory], *, device: torch.device | str = "cpu") -> Batch:
    """All episodes in one row; those of a group share the row's stretch for the tokens that all of them begin with."""
    rows: list[np.ndarray] = []
    lengths: list[int] = []
    parents: list[int] = []
    places: list[np.ndarray] = [np.empty(0)] * len(trajectories)  # of each episode's tokens in the row
    end = 0
    for family in _families(trajectories):
        shared = _shared([trajectories[i] for i in family])
        prefix = np.arange(end, end + shared)
        parent = -1
        if shared:
            parent = len(lengths)
            rows.append(np.array(trajectories[family[0]].ids[:shared]))
            lengths.append(shared)
            parents.append(-1)
            end += shared
        for i in family:
            own = np.array(trajectories[i].ids[shared:])
            places[i] = np.concatenate([prefix, np.arange(end, end + len(own))])
            rows.append(own)
            lengths.append(len(own))
            parents.append(parent)
            end += len(own)
    positions = np.empty(end, dtype=np.int64)
    for place in places:
        positions[place] = np.arange(len(place))
    return _batch(
        trajectories,
        places,
        ids=np.concatenate(rows)[None],
        positions=positions[None],
        segments=Segments(lengths, parents, torch.device(device)),
        device=device,
    )


def collate(trajectories: Sequence[Trajectory], *, pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """A row for each episode; causal attention never lets a token see the padding to its right."""
    shape = len(trajectories), max(len(t.ids) for t in trajectories)
    ids = np.full(shape, pad_id, dtype=np.int64)
    for row, t in zip(ids, trajectories, strict=True):
        row[: len(t.ids)] = t.ids
    places = [i * shape[1] + np.arange(len(t.ids)) for i, t in enumerate(trajectories)]
    positions = np.tile(np.arange(shape[1]), (shape[0], 1))
    return _batch(trajectories, places, ids=ids, positions=positions, segments=None, device=device)


def fill(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Spreads things over as few bins as first-fit-decreasing finds; one larger than a bin has one of its own.

    Args:
        sizes: Of the things, in any unit.
        capacity: Of a bin, in the same.

    Returns:
        The bins, as lists of indices.

    >>> fill([3, 9, 6, 1], capacity=10)
    [[1, 3], [2, 0]]
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        at = next((b for b, left in enumerate(room) if sizes[i] <= left), len(bins))
        if at == len(bins):
            bins.append([])
            room.append(capacity)
        bins[at].append(i)
        room[at] -= sizes[i]
    return bins


def microbatches(trajectories: Sequence[Trajectory], max_tokens: int) -> list[list[int]]:
    """Which episodes to `pack` together: at most `max_tokens` tokens in the row, or one episode; groups stay together."""
    parts = [part for family in _families(trajectories) for part in _split(trajectories, family, max_tokens)]
    bins = fill([tokens for _, tokens in parts], max_tokens)
    return [[i for part in which for i in parts[part][0]] for which in bins]


def padded_microbatches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Which episodes to `collate`: of like length, with at most `max_tokens` padded tokens (or one episode).

    >>> list(padded_microbatches([5, 90, 6, 80], max_tokens=180))
    [[0, 2], [3, 1]]
    """
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if group and lengths[i] * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def deal(parts: Sequence[list[int]], lengths: Sequence[int], rank: int, ranks: int) -> list[list[int]]:
    """One rank's micro-batches, one for each round, in which every rank has one of about the same cost.

    All ranks wait for the slowest in every pass, so what is alike is done at the same time. The cost of an episode of n tokens is
    taken for n (1 + n / 32768): attention catches up with the rest of a model at about that length.

    Args:
        parts: The micro-batches, as indices of episodes.
        lengths: Of the episodes, in tokens.
        rank: Whose share this is.
        ranks: How many there are.

    Returns:
        As many as any other rank gets; the last may be empty.

    >>> [deal([[0], [1, 2], [3]], [9, 2, 3, 4], rank, 2) for rank in range(2)]
    [[[0], [3]], [[1, 2], []]]
    """
    costs = [sum(lengths[i] * (1 + lengths[i] / 32768) for i in part) for part in parts]
    order = sorted(range(len(parts)), key=lambda p: (-costs[p], p))
    order += [-1] * (-len(order) % ranks)
    return [parts[p] if p >= 0 else [] for p in order[rank::ranks]]


def _families(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """The indices of each group's episodes."""
    found: dict[int, list[int]] = {}
    for i, t in enumerate(trajectories):
        found.setdefault(t.group, []).append(i)
    return list(found.values())


def _split(trajectories: Sequence[Trajectory], family: list[int], max_tokens: int) -> list[tuple[list[int], int]]:
    """A group in as few parts as fit, with the packed tokens of each."""
    found: list[tuple[list[int], int]] = []
    part, total, common = family[:1], len(trajectories[family[0]].ids), 0
    size = total
    for i in family[1:]:
        beginning = _common(trajectories[part[0]], trajectories[i])
        shared = beginning if len(part) == 1 else min(common, beginning)
        together = total + len(trajectories[i].ids)
        packed = together - len(part) * (shared if shared >= _LEAST_SHARED else 0)
        if packed > max_tokens:
            found.append((part, size))
            part, total, size = [i], len(trajectories[i].ids), len(trajectories[i].ids)
        else:
            part, total, size, common = [*part, i], together, packed, shared
    return [*found, (part, size)]


def _shared(family: Sequence[Trajectory]) -> int:
    """How many tokens the episodes begin with in common; 0 where they are few."""
    shared = min((_common(family[0], t) for t in family[1:]), default=0)
    return shared if shared >= _LEAST_SHARED else 0


def _common(a: Trajectory, b: Trajectory) -> int:
    """How many tokens both begin with, less than either has, so that each keeps one of its own."""
    least = min(len(a.ids), len(b.ids)) - 1
    differs = np.array(a.ids[:least]) != np.array(b.ids[:least])
    return int(differs.argmax()) if differs.any() else least


def _batch(
    trajectories: Sequence[Trajectory],
    places: Sequence[np.ndarray],
    *,
    ids: np.ndarray,
    positions: np.ndarray,
    segments: Segments | None,
    device: torch.device | str,
) -> Batch:
    written = [np.flatnonzero(t.action_mask[1:]) + 1 for t in trajectories]
    counts = np.array([len(w) for w in written])
    mask = np.arange(counts.max()) < counts[:, None]
    logprobs = np.zeros(mask.shape, dtype=np.float32)
    for row, t, w in zip(logprobs, trajectories, written, strict=True):
        row[: len(w)] = np.array(t.logprobs)[w]
    sources = np.concatenate([place[w - 1] for place, w in zip(places, written, strict=True)])
    targets = np.concatenate([np.array(t.ids)[w] for t, w in zip(trajectories, written, strict=True)])

    def there(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Batch(
        there(ids.astype(np.int64)),
        there(positions),
        segments,
        there(sources.astype(np.int64)),
        there(targets.astype(np.int64)),
        there(mask),
        there(logprobs),
    )
