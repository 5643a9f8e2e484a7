"""The EH-* environment ids and their classes, which ``gym.make`` imports when it needs them.

No id has a ``max_episode_steps``, because `ElasticTimeLimit` sets the limit.
"""

import importlib
import sys
from typing import Any

import gymnasium as gym

ENTRY_POINTS = {
    "EH-Cabinet-v0": "envs.cabinet.env:CabinetEnv",
    "EH-CabinetLocked-v0": "envs.cabinet.env:CabinetLockedEnv",
    "EH-CabinetOpenEnded-v0": "envs.cabinet.env:CabinetOpenEndedEnv",
    "EH-BFCL-v0": "envs.bfcl.env:BFCLEnv",
    "EH-AppWorld-v0": "envs.appworld.env:AppWorldEnv",
    "EH-Tau2-v0": "envs.tau2.env:Tau2Env",
}


_REMOTE = {"EH-Remote-v0": "envs.openenv.client:RemoteEnv"}
"""Can't be made without the address of a server."""


def register_envs() -> None:
    """Registers the EH-* ids with gymnasium, as ``import eh_gym`` does. Calling it again is harmless.

    Example:
        >>> register_envs()
        >>> gym.spec("EH-Cabinet-v0").max_episode_steps is None
        True
    """
    for env_id, entry_point in {**ENTRY_POINTS, **_REMOTE}.items():
        if env_id not in gym.registry:
            gym.register(id=env_id, entry_point=f"{__name__}:{entry_point.partition(':')[2]}", max_episode_steps=None)


def __getattr__(name: str) -> Any:
    """Imports the class that gymnasium asks for (PEP 562).

    Raises:
        ForeignPackageError: A package or folder of another project is called `envs`.
    """
    homes = {entry.partition(":")[2]: entry.partition(":")[0] for entry in [*ENTRY_POINTS.values(), *_REMOTE.values()]}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("envs."):
            raise
        from eh_gym.errors import ForeignPackageError

        other = sys.modules["envs"]  # another project's, for it has no such module
        place = getattr(other, "__file__", None) or next(iter(other.__path__))
        raise ForeignPackageError(
            f"expected Elastic Horizon's package 'envs', got the one in {place}; rename it, work in another folder, or "
            "keep the current folder off the path with python -P (Python 3.11)"
        ) from error
