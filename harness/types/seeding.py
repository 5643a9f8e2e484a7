"""Seeds for every random draw. They depend on the run's seed and on what draws, never on an order."""

import hashlib
import json

import numpy as np


def derive_seed(run_seed: int, *path: int | str) -> int:
    """The seed of one thing that draws, which is named by a path: ``derive_seed(seed, "episode", update, task,
    member)``.

    Args:
        run_seed: The run's seed; any int.
        path: The name of what draws, and its place. 1 and "1" are different paths.

    Returns:
        A number of 63 bits, which is the same on every machine and in every process.

    >>> derive_seed(0, "episode", 3) == derive_seed(0, "episode", 3) != derive_seed(0, "episode", 4)
    True
    """
    name = json.dumps([int(run_seed), *path]).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


def uniforms(seed: int, n: int) -> np.ndarray:
    """`n` uniform numbers in [0, 1), float64; the first m of them do not depend on `n`."""
    return np.random.Generator(np.random.Philox(key=seed)).random(n)
