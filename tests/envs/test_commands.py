import os
import subprocess
import sys
import time
from pathlib import Path

import envs
from envs.commands import held


def test_the_lock_lives_as_long_as_what_a_killed_installation_has_started(tmp_path):
    code = """
import pathlib
from envs.commands import held, run
with held(pathlib.Path("lock")):
    run(["sh", "-c", "touch began; while [ ! -e go ]; do sleep 0.01; done"])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(envs.__file__).parents[1])}
    )
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    waits = []
    with held(tmp_path / "lock", say=lambda line: waits.append(line) or (tmp_path / "go").touch()):
        assert len(waits) == 1


def test_a_list_that_nobody_reads_to_its_end_says_nothing():
    piped = subprocess.run(
        f"{sys.executable} -m envs list | true", shell=True, capture_output=True, text=True, timeout=60
    )
    assert piped.stderr == ""
