import sys
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError
from envs.cache import cache_dir


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"EH_CACHE_DIR": "~/b"}, "linux", "/home/me/b"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/elastic-horizon"),
        ({}, "linux", "/home/me/.cache/elastic-horizon"),
        ({}, "darwin", "/home/me/Library/Caches/elastic-horizon"),
    ],
)
def test_where_the_cache_is(monkeypatch, environment, platform, expected):
    for name in ("EH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_dir() == Path(expected)


def test_a_home_folder_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", "~nobody-at-all/cache")
    with pytest.raises(ConfigError, match=r"~nobody-at-all/cache.*EH_CACHE_DIR"):
        cache_dir()
