"""Turns episodes into tensors: which episodes go through the model together, and how they are laid out.

`pack` puts the episodes one after the other in a single row, where the common beginning of a group is only once;
docs/training.md explains it. `collate` pads the episodes on the right, for models that can't be packed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.model.attention import Segments
from harness.types.trajectory import TokenSequence, Trajectory

Tokens = Trajectory | TokenSequence
"""An episode, or one of its sequences. Below, both are called an episode."""

# A shorter common beginning is not shared: that would save less than its attention costs.
_LEAST_SHARED = 32


@dataclass(frozen=True)
class Batch:
    """B episodes with N written tokens in total, and at most A in one episode.

    Attributes:
        ids: int64 [R, S], R rows of S tokens; R is 1 for a packed batch.
        position_ids: int64 [R, S], the position of each token in its episode.
        segments: The segments of the packed row; None for padded rows.
        sources: int64 [N], for each written token, the index in the flattened `ids` from which it is predicted.
        targets: int64 [N], the written tokens, episode by episode.
        action_mask: bool [B, A], which of the A places hold a written token; they come first.
        logprobs: float32 [B, A], the log-probabilities with which the written tokens were sampled; 0 elsewhere.
    """

    ids: Tensor
    position_ids: Tensor
    segments: Segments | None
    sources: Tensor
    targets: Tensor
    action_mask: Tensor
    logprobs: Tensor


def pack(trajectories: Sequence[Tokens], *, device: torch.device | str = "cpu") -> Batch:
    """Puts all episodes in one row. Those of a group share a segment for their common beginning."""
    rows: list[np.ndarray] = []
    lengths: list[int] = []
    parents: list[int] = []
    places: list[np.ndarray] = [np.empty(0)] * len(trajectories)  # of each episode's tokens, the indices in the row
    end = 0
    for family in _families(trajectories):
        shared = _shared_tokens([trajectories[i] for i in family])
        prefix = np.arange(end, end + shared)
        parent = -1
        if shared:
            parent = len(lengths)
            rows.append(np.array(trajectories[family[0]].ids[:shared]))
            lengths.append(shared)
            parents.append(-1)
            end += shared
        for i in family:
            rest = np.array(trajectories[i].ids[shared:])
            places[i] = np.concatenate([prefix, np.arange(end, end + len(rest))])
            rows.append(rest)
            lengths.append(len(rest))
            parents.append(parent)
            end += len(rest)
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


def collate(trajectories: Sequence[Tokens], *, pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """Gives each episode its own row. Causal attention never lets a token see the padding to its right."""
    shape = len(trajectories), max(len(t.ids) for t in trajectories)
    ids = np.full(shape, pad_id, dtype=np.int64)
    for row, t in zip(ids, trajectories, strict=True):
        row[: len(t.ids)] = t.ids
    places = [i * shape[1] + np.arange(len(t.ids)) for i, t in enumerate(trajectories)]
    positions = np.tile(np.arange(shape[1]), (shape[0], 1))
    return _batch(trajectories, places, ids=ids, positions=positions, segments=None, device=device)


def fill(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Distributes items over bins, which are lists of their indices, with the first-fit-decreasing rule.

    An item larger than a bin gets its own bin. `sizes` and `capacity` have the same unit.

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


def microbatches(trajectories: Sequence[Tokens], max_tokens: int) -> list[list[int]]:
    """Chooses the episodes of each row for `pack`: groups, in at most `max_tokens` tokens, or one longer episode."""
    parts = [part for family in _families(trajectories) for part in _split(trajectories, family, max_tokens)]
    bins = fill([tokens for _, tokens in parts], max_tokens)
    return [[i for part in which for i in parts[part][0]] for which in bins]


def padded_microbatches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Chooses the episodes to `collate` together: of similar length, with at most `max_tokens` padded tokens, or one
    episode.

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
    """One rank's micro-batches. In each round every rank has one micro-batch of about the same cost.

    All ranks wait for the slowest in every pass, so passes of similar cost run at the same time. An episode of n tokens
    is estimated to cost n (1 + n / 32768): at about that length, attention costs as much as the rest of a model.
    `parts` are the micro-batches as indices of episodes, `lengths` the episodes' tokens. A rank's last micro-batch may
    be empty.

    >>> [deal([[0], [1, 2], [3]], [9, 2, 3, 4], rank, 2) for rank in range(2)]
    [[[0], [3]], [[1, 2], []]]
    """
    costs = [sum(lengths[i] * (1 + lengths[i] / 32768) for i in part) for part in parts]
    order = sorted(range(len(parts)), key=lambda p: (-costs[p], p))
    order += [-1] * (-len(order) % ranks)
    return [parts[p] if p >= 0 else [] for p in order[rank::ranks]]


def _families(trajectories: Sequence[Tokens]) -> list[list[int]]:
    families: dict[int, list[int]] = {}
    for i, t in enumerate(trajectories):
        families.setdefault(t.group, []).append(i)
    return list(families.values())


def _split(trajectories: Sequence[Tokens], family: list[int], max_tokens: int) -> list[tuple[list[int], int]]:
    """Splits a group into few parts, because each computes the common beginning. Returns their tokens, too."""
    shared = _shared_tokens([trajectories[i] for i in family])
    rests = [len(trajectories[i].ids) - shared for i in family]
    whole = shared + sum(rests) <= max_tokens
    parts = [list(range(len(family)))] if whole else fill(rests, max(1, max_tokens - shared))
    return [([family[i] for i in sorted(part)], shared + sum(rests[i] for i in part)) for part in parts]


def _shared_tokens(family: Sequence[Tokens]) -> int:
    """The number of tokens that all episodes begin with; 0 if they are too few to share."""
    shared = min((_common(family[0], t) for t in family[1:]), default=0)
    return shared if shared >= _LEAST_SHARED else 0


def _common(a: Tokens, b: Tokens) -> int:
    """The number of tokens that both begin with. Each keeps at least one token of its own."""
    least = min(len(a.ids), len(b.ids)) - 1
    differs = np.array(a.ids[:least]) != np.array(b.ids[:least])
    return int(differs.argmax()) if differs.any() else least


def _batch(
    trajectories: Sequence[Tokens],
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
