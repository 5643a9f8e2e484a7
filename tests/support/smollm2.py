"""Where the tests find SmolLM2-135M-Instruct, a real chat model."""

import os
import runpy
from pathlib import Path

import pytest


def smollm2_folder():
    """The model's folder; without it the test is skipped, or fails under EH_REQUIRE_BACKENDS=1."""
    folder = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "smollm2.py"))["default_folder"]()
    if not folder.is_dir():
        why = "SmolLM2 is missing; run: python tools/smollm2.py"
        assert not os.environ.get("EH_REQUIRE_BACKENDS"), why
        pytest.skip(why)
    return folder
