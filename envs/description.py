"""What the commands know of an environment before they make it."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eh_gym.errors import EHError
from eh_gym.registration import ENTRY_POINTS


@dataclass(frozen=True)
class Backend:
    """The contents of a backend's virtualenv.

    Attributes:
        name: The backend's name, as in ``python -m envs install NAME``.
        version: The version of the first requirement; a part of the folder's name.
        requirements: Distribution -> exact version. They are installed without their dependencies.
        python: The oldest Python that the backend runs on, as (major, minor).
        finish: A script that the new interpreter runs after the installation, or None.
        installer: A module with ``install(force, benchmark)``, which also installs data, and ``report(python)``, which
            returns whether the data are there, and lines for ``doctor``. Empty if there are no data.
    """

    name: str
    version: str
    requirements: Mapping[str, str] = field(hash=False)
    python: tuple[int, int] = (3, 10)
    finish: Path | None = None
    installer: str = ""


@dataclass(frozen=True)
class Description:
    """The attribute ``description`` of the class of a registered environment.

    Attributes:
        task_ids: Returns the ids of a split's tasks, or raises an EHError if they are not installed.
        recipe: The recipe for training on it; empty for the quick start's.
        model_split: The split on which a model is evaluated by default.
        script_split: The same for a player without a model, such as the expert.
        test_split: The split that tests play. Every installation has it.
        official: Setting -> its value with ``--official``.
        official_splits: Further splits whose scores are official, too.
        scripts: Further players for ``--policy``; ``env.script(name)`` gives the next action.
        part_arguments: The arguments that choose a part of a split, so that the score is not official.
    """

    splits: Sequence[str]
    task_ids: Callable[[str], Sequence[str]]
    backend: Backend | None = None
    recipe: str = ""
    model_split: str = "test"
    script_split: str = "all"
    test_split: str = "dev"
    official: Mapping[str, Any] = field(default_factory=dict)
    official_splits: Sequence[str] = ()
    part_arguments: Sequence[str] = ()
    scripts: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
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
    return {env_id: pkgutil.resolve_name(entry_point).description for env_id, entry_point in ENTRY_POINTS.items()}
