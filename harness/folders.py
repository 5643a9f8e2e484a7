"""Folders that flags name, made so that one that can't be is a sentence.

Left out: what is put into them.
"""

from __future__ import annotations

import os
from pathlib import Path

from eh_gym.errors import ConfigError

__all__ = ["make_folder"]


def make_folder(folder: Path, flag: str) -> None:
    """Makes a folder, and those it is in, unless it is there.

    Args:
        folder: Where.
        flag: Which flag named it, for the message.

    Raises:
        ConfigError: It can't be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} can't be made ({error.strerror}); give another {flag}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} can't be written to; give another {flag}")
