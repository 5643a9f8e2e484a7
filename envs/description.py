"""What the commands know of an environment before they make it."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eh_gym.errors import EHError
from eh_gym.registration import ENTRY_POINTS

if TYPE_CHECKING:
    from envs.backends import Backend


@dataclass(frozen=True)
class Description:
    """The attribute ``description`` of the class of a registered environment.

    Attributes:
        splits: The names of the splits.
        task_ids: Returns the ids of a split's tasks, or raises an EHError if they are not installed.
        backend: What must be installed; None if nothing must.
        recipe: The recipe for training on it; empty for the quick start's.
        model_split: The split on which a model is evaluated by default.
        script_split: The same for a player without a model, such as the expert.
        test_split: The split that tests play. Every installation has it.
        official: Setting -> its value with ``--official``.
        official_splits: Further splits whose scores are official, too.
        part_arguments: The arguments that choose a part of a split, so that the score is not official.
    """

    splits: Sequence[str]
    task_ids: Callable[[str], Sequence[str]]
    backend: "Backend | None" = None
    recipe: str = ""
    model_split: str = "test"
    script_split: str = "all"
    test_split: str = "dev"
    official: Mapping[str, Any] = field(default_factory=dict)
    official_splits: Sequence[str] = ()
    part_arguments: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
        """Split -> the number of its tasks; 0 if it is not installed."""
        counts = dict.fromkeys(self.splits, 0)
        for split in counts:
            with suppress(EHError):
                counts[split] = len(self.task_ids(split))
        return counts


def description_of(env_id: str) -> Description | None:
    """The description of a registered environment. None for any other, and for several environments.

    >>> description_of("eh_gym:EH-BFCL-v0").recipe, description_of("CartPole-v1")
    ('bfcl', None)
    """
    return descriptions().get(env_id.rpartition(":")[2])


def descriptions() -> dict[str, Description]:
    """The descriptions of all registered environments, by id."""
    return {env_id: pkgutil.resolve_name(entry_point).description for env_id, entry_point in ENTRY_POINTS.items()}
