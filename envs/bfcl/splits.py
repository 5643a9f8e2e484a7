"""Which of BFCL's 200 scenarios are for training and which are held out.

The splits are made by scenario and not by entry, because each scenario is in all four categories.
"""

import random
from collections.abc import Sequence

from eh_gym.errors import ConfigError

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SPLITS = ("train", "dev", "test", "all")
DOMAINS = ("file_system", "vehicle", "trading", "travel")  # scenarios 0-49, 50-99, 100-149, 150-199

_PER_DOMAIN = 50
_TRAIN, _DEV = 30, 8  # of each domain's 50 scenarios; the other 12 are for test


def scenarios(split: str) -> list[int]:
    """The scenario indices of a split, ascending. Each domain has a quarter of them.

    >>> [len(scenarios(split)) for split in SPLITS]
    [120, 32, 48, 200]
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split == "all":
        return list(range(len(DOMAINS) * _PER_DOMAIN))
    indices: list[int] = []
    for domain in range(len(DOMAINS)):
        order = list(range(domain * _PER_DOMAIN, (domain + 1) * _PER_DOMAIN))
        random.Random(f"EH-BFCL-v0 splits, domain {domain}").shuffle(order)
        parts = {"train": order[:_TRAIN], "dev": order[_TRAIN : _TRAIN + _DEV], "test": order[_TRAIN + _DEV :]}
        indices += parts[split]
    return sorted(indices)


def task_ids(split: str, categories: Sequence[str] | None = None, domains: Sequence[str] | None = None) -> list[str]:
    """The entry ids of a split, such as ``multi_turn_base_0``, one category after the other.

    >>> len(task_ids("train", ["base"], ["vehicle"]))
    30
    """
    in_categories, in_domains = _some("categories", categories, CATEGORIES), _some("domains", domains, DOMAINS)
    indices = [index for index in scenarios(split) if DOMAINS[index // _PER_DOMAIN] in in_domains]
    return [f"multi_turn_{category}_{index}" for category in in_categories for index in indices]


def _some(what: str, wanted: Sequence[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if wanted is None:
        return known
    if isinstance(wanted, str):
        raise ConfigError(f"{what} must be a list, got {wanted!r}; pass [{wanted!r}]")
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise ConfigError(f"{what} must be a list of {', '.join(known)}, got {wanted!r}")
    if not wanted or not set(wanted) <= set(known) or len(set(wanted)) < len(wanted):
        raise ConfigError(f"{what} must be some of {', '.join(known)}, each once, got {list(wanted)}")
    return tuple(wanted)
