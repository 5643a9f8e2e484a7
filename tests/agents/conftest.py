"""The agents in JavaScript, with their packages from npm."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory):
    if os.environ.get("EH_AGENT") not in ("node", "clients"):
        pytest.skip("npm's packages are fetched by tox run -m agents alone")
    if not shutil.which("npm"):
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("node") / "agent"
    shutil.copytree(Path(__file__).parent / "node", folder)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)
    return folder


@pytest.fixture
def command(node_folder):
    return f"node {node_folder / 'agent.mjs'}"
