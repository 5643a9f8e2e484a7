"""The installed commands train, evaluate and report; `tox run -m pythons` runs this on the other Pythons."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

SMALL = "--wrapper elastic --updates 2 --tasks-per-update 2 --group-size 2 --eval-tasks 2 --eval-every 1 --k0 8 --eval-horizon 8"


def _command(*words: str | Path, cwd: Path) -> str:
    script = Path(sysconfig.get_path("scripts"), words[0])
    done = subprocess.run([script, *words[1:]], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("recipe", "backend", "arguments"),
    [
        ("quickstart", None, "--warm-start.max-batches 150"),
        ("bfcl", "bfcl_python", "--warm-start.episodes 0"),
        ("appworld", "appworld_python", "--warm-start.episodes 0 --split mini --eval-split mini"),
    ],
)
def test_a_run_is_trained_evaluated_and_reported(
    request: pytest.FixtureRequest, tmp_path: Path, recipe: str, backend: str | None, arguments: str
) -> None:
    if backend:
        request.getfixturevalue(backend)
    _command("eh-train", "--recipe", recipe, "--out", "run", *f"{SMALL} {arguments}".split(), cwd=tmp_path)
    _command("eh-evaluate", "run", "--tasks", "2", "--rollouts", "1", "--out", "evaluation", cwd=tmp_path)
    _command("eh-report", "run", "evaluation", cwd=tmp_path)
    assert "K by update" in (tmp_path / "report.html").read_text()
