"""The BFCL backend for the tests that need it: skipped where it is missing, unless EH_REQUIRE_BACKENDS=1 (tox, CI)."""

import os

import pytest

from eh_gym.errors import MissingBackendError
from eh_gym.worker import close_shared_pools
from envs.runtime import backend_python


@pytest.fixture(scope="session")
def bfcl_python():
    """The interpreter of bfcl-eval's virtualenv."""
    try:
        python = backend_python("bfcl")
    except MissingBackendError as missing:
        if os.environ.get("EH_REQUIRE_BACKENDS") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    yield python
    close_shared_pools()
