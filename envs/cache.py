"""The folder of everything that can be built again: virtualenvs of backends, data, models."""

import os
import sys
from pathlib import Path

from eh_gym.errors import ConfigError


def cache_dir() -> Path:
    """EH_CACHE_DIR if that is set, else ``elastic-horizon`` in XDG_CACHE_HOME or the platform's cache folder."""
    given = os.environ.get("EH_CACHE_DIR")
    default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    folder = expanded(given or os.environ.get("XDG_CACHE_HOME") or default, "EH_CACHE_DIR").resolve()
    folder = folder if given else folder / "elastic-horizon"
    try:
        os.stat(os.path.join(folder, "."))  # with the dot, also if only its contents are hidden
    except PermissionError:
        raise ConfigError(f"{folder} belongs to another user; set EH_CACHE_DIR to a folder of your own") from None
    except OSError:
        pass  # the folder is made when it is needed
    return folder


def expanded(path: str, variable: str) -> Path:
    """The path with the user's home folder for its ``~``."""
    absolute = os.path.expanduser(path)
    if absolute.startswith("~"):
        raise ConfigError(f"{path}: there is no such home folder; set {variable} to a path without ~")
    return Path(absolute)
