"""Where every random number comes from: the run's seed and the place of what draws, never the order in which things finish."""

from __future__ import annotations

import hashlib
import json

import numpy as np

__all__ = ["derive_seed", "uniforms"]


def derive_seed(run_seed: int, *path: int | str) -> int:
    """The seed of one thing, named by its path: ``derive_seed(seed, "episode", update, task, member)``.

    Args:
        run_seed: Any int.
        path: What draws, and its place. 1 and "1" are different paths.

    Returns:
        63 bits, the same on every machine and in every process.

    >>> derive_seed(0, "episode", 3) == derive_seed(0, "episode", 3) != derive_seed(0, "episode", 4)
    True
    """
    name = json.dumps([int(run_seed), *path]).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


def uniforms(seed: int, n: int) -> np.ndarray:
    """`n` numbers in [0, 1), float64, from a stream of their own; the first m of them do not depend on `n`."""
    return np.random.Generator(np.random.Philox(key=seed)).random(n)
