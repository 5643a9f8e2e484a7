"""`tox run -e gpu`: every path of the harness on this machine's GPUs. docs/vllm.md names what is promised."""

import gpus
import pytest


@pytest.fixture(scope="session")
def a_gpu():
    gpus.need_gpu()
