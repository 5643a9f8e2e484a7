"""The installed commands train, evaluate and report; `tox run -m pythons` runs this on the other Pythons."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from envs.backends import all_backends

SMALL = "--wrapper elastic --updates 2 --tasks-per-update 2 --group-size 2 --k0 8 "
SMALL += "--eval-tasks 2 --eval-every 1 --eval-horizon 8"
RUNS = {
    "quickstart": "--warm-start.max-batches 150",
    "bfcl": "--warm-start.episodes 0",
    "appworld": "--warm-start.episodes 0 --split mini --eval-split mini",
}


@pytest.mark.campaign
@pytest.mark.parametrize("recipe", RUNS)
def test_a_run_is_trained_evaluated_and_reported(request, tmp_path, recipe):
    if recipe in all_backends():
        request.getfixturevalue(f"{recipe}_python")
    for command in (
        f"eh-train --recipe {recipe} --out run {SMALL} {RUNS[recipe]}",
        "eh-evaluate run --tasks 2 --rollouts 1 --out evaluation",
        "eh-report run evaluation",
    ):
        script, *words = command.split()
        done = subprocess.run(
            [Path(sysconfig.get_path("scripts"), script), *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "K by update" in (tmp_path / "report.html").read_text()
