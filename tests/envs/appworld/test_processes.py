"""No process is left behind after the owner of 64 slots is killed; of 8 outside the campaign."""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from processes import gone

from eh_gym.errors import WorkerDied
from envs.appworld import forks
from envs.appworld.hosts import Host

SCRIPT = """
import sys, eh_gym

SLOTS = int(sys.argv[1])

envs = eh_gym.make_vec("EH-AppWorld-v0", SLOTS, split="mini", max_workers=8)
ids = envs.envs[0].unwrapped.task_ids
envs.reset(options={"task_ids": [ids[i % len(ids)] for i in range(SLOTS)]})
said = envs.step(["print(7)"] * SLOTS)[0]
assert set(said) == {"7\\n"}, said
print("stepped", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("slots", [8, pytest.param(64, marks=pytest.mark.campaign)])
def test_slots_of_a_killed_process_leave_no_process(appworld_python, slots):
    command, pipe = [sys.executable, "-c", SCRIPT, str(slots)], subprocess.PIPE
    folder = tempfile.mkdtemp()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"TMPDIR": folder}) as owner:
        assert owner.stdout.readline() == "stepped\n"
        worlds = psutil.Process(owner.pid).children(recursive=True)
        assert len(worlds) >= slots + 2  # and the zygotes
        for zygote in psutil.Process(owner.pid).children():
            zygote.suspend()
        owner.kill()
    assert gone(*worlds)
    os.rmdir(folder)  # nothing is left in it


def test_a_host_that_is_closed_while_it_makes_worlds_leaves_no_process(monkeypatch, tmp_path):
    fake, command = Path(__file__).with_name("fake_zygote.py"), forks.backend_command
    monkeypatch.setattr(forks, "backend_command", lambda python, backend: command(python, fake))
    before = psutil.Process().children(recursive=True)
    host = Host(Path(sys.executable), tmp_path)
    host.open("a_1")

    def open_many():
        while True:
            host.open("a_2")

    with ThreadPoolExecutor(2) as threads:
        opening = [threads.submit(open_many) for _ in range(2)]
        host.close()
        for thread in opening:
            with pytest.raises(WorkerDied):
                thread.result()
    with pytest.raises(WorkerDied, match="was closed"):
        host.open("a_3")
    assert [child for child in psutil.Process().children(recursive=True) if child not in before] == []
