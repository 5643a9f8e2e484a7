"""The agent in JavaScript, with its packages from npm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command that starts it."""
    if os.environ.get("EH_AGENT") != "node":
        pytest.skip("npm's packages are fetched by tox run -e agent-node alone")
    if not shutil.which("npm"):
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("node") / "agent"
    shutil.copytree(Path(__file__).parent / "node", folder)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)
    return f"node {folder / 'agent.mjs'}"
