"""The place of EH-AppWorld-v0, which is not part of this release yet.

Left out: the environment. Its id is registered so that asking for it gets an answer instead of "unknown id".
"""

from __future__ import annotations

from typing import NoReturn

import gymnasium as gym

from eh_gym.errors import MissingBackendError

__all__ = ["AppWorldEnv"]


class AppWorldEnv(gym.Env[str, str]):
    """Raises MissingBackendError, whatever it is called with."""

    def __init__(self, **options: object) -> None:
        _raise()


def _raise() -> NoReturn:
    raise MissingBackendError(
        "EH-AppWorld-v0 is not part of this release of Elastic Horizon yet; "
        "these ids work: EH-Cabinet-v0, EH-CabinetLocked-v0, EH-BFCL-v0"
    )
