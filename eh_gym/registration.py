"""The EH-* environment ids and the classes behind them, as strings.

Left out: the classes themselves. A string is imported when ``gym.make`` needs it, so that registering costs nothing and
nothing here depends on ``envs``. No id has a ``max_episode_steps``: how long an episode may be is ElasticTimeLimit's
question, not the registry's.
"""

from __future__ import annotations

import gymnasium as gym

__all__ = ["ENTRY_POINTS", "register_envs"]

ENTRY_POINTS = {
    "EH-Cabinet-v0": "envs.cabinet.env:CabinetEnv",
    "EH-CabinetLocked-v0": "envs.cabinet.env:CabinetLockedEnv",
    "EH-CabinetOpenEnded-v0": "envs.cabinet.env:CabinetOpenEndedEnv",
    "EH-BFCL-v0": "envs.bfcl.env:BFCLEnv",
    "EH-AppWorld-v0": "envs.appworld.env:AppWorldEnv",
}


_REMOTE = {"EH-Remote-v0": "envs.openenv.client:RemoteEnv"}
"""Needs the address of a server, so it is not among the environments that can be made as they are."""


def register_envs() -> None:
    """Registers the EH-* ids with gymnasium; called once by ``import eh_gym``, harmless when called again.

    Example:
        >>> register_envs()
        >>> gym.spec("EH-Cabinet-v0").max_episode_steps is None
        True
    """
    for env_id, entry_point in {**ENTRY_POINTS, **_REMOTE}.items():
        if env_id not in gym.registry:
            gym.register(id=env_id, entry_point=entry_point, max_episode_steps=None)
