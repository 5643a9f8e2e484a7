"""The backends for the tests that need them: skipped where one is missing, unless EH_REQUIRE_BACKENDS=1 (tox, CI)."""

import os

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


def _there(find):
    try:
        return find()
    except MissingBackendError as missing:
        if os.environ.get("EH_REQUIRE_BACKENDS") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
