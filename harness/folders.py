"""Folders that flags name, and the JSON objects in them: one that can't be made or read is a sentence.

Left out: what the objects mean.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, StateError

__all__ = ["make_folder", "read_object"]


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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a command of this project wrote into a file.

    Raises:
        StateError: It can't be read, or is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise StateError(f"{path} can't be read ({error}); restore the file") from error
    if not isinstance(value, dict):
        raise StateError(f"{path} must hold a JSON object, got {type(value).__name__}; restore the file")
    return value
