"""What several folders of tests need: the backends, and a chat endpoint.

A test that needs a backend is skipped where it is missing, and fails there under EH_REQUIRE_BACKENDS=1 (tox, CI).
"""

import os
import sys
from pathlib import Path

import pytest

from eh_gym.errors import MissingBackendError
from eh_gym.worker import close_shared_pools
from envs.appworld import data
from envs.runtime import backend_python


@pytest.fixture(scope="session")
def bfcl_python():
    """The interpreter of bfcl-eval's virtualenv."""
    yield _there(lambda: backend_python("bfcl"))
    close_shared_pools()


@pytest.fixture(scope="session")
def appworld_python():
    """The interpreter of AppWorld's virtualenv; the mini world is there too."""
    python = _there(lambda: backend_python("appworld"))
    _there(lambda: data.roots("mini"))
    return python


@pytest.fixture
def chat_server(monkeypatch):
    """The module with the local chat endpoint; proxies that the machine may name are not asked for it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import chat_server

    yield chat_server
    sys.modules.pop("chat_server", None)


def _there(find):
    try:
        return find()
    except MissingBackendError as missing:
        if os.environ.get("EH_REQUIRE_BACKENDS") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
