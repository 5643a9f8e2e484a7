"""No process is left behind: 64 slots opened and closed, and as many after their owner is killed; 8 outside the campaign."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from eh_gym.errors import WorkerDied
from envs.appworld import forks
from envs.appworld.data import Roots
from envs.appworld.hosts import Host

SCRIPT = """
import json, sys, psutil, eh_gym

SLOTS = int(sys.argv[1])

def main():
    envs = eh_gym.make_vec("EH-AppWorld-v0", SLOTS, split="mini", max_workers=8)
    ids = envs.envs[0].unwrapped.task_ids
    envs.reset(options={"task_ids": [ids[i % len(ids)] for i in range(SLOTS)]})
    said = envs.step(["print(7)"] * SLOTS)[0]
    assert set(said) == {"7\\n"}, said
    # A child of a world that this process has not reaped would be one too many.
    print(json.dumps([(c.pid, c.create_time()) for c in psutil.Process().children(recursive=True)]), flush=True)
    sys.stdin.readline()
    envs.close()
    print(json.dumps([(c.pid, c.create_time()) for c in psutil.Process().children(recursive=True)]), flush=True)

main()
"""


@pytest.fixture(params=[8, pytest.param(64, marks=pytest.mark.campaign)])
def slots(request):
    return request.param


@pytest.fixture
def owner(appworld_python, slots):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(slots)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


def alive(processes):
    """Those that still run, of (pid, start time)."""
    found = []
    for pid, started in processes:
        try:
            one = psutil.Process(pid)
            if one.create_time() == started and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except psutil.NoSuchProcess:
            pass
    return found


def assert_gone(processes):
    deadline = time.monotonic() + 120
    while alive(processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(processes)


@pytest.mark.campaign
@pytest.mark.parametrize("slots", [64], indirect=True)
def test_slots_opened_and_closed_leave_no_process(owner, slots):
    worlds = json.loads(owner.stdout.readline())
    assert len(worlds) >= slots + 2  # and the zygotes
    owner.stdin.write("\n")
    owner.stdin.flush()
    left = json.loads(owner.stdout.readline())
    assert len(left) == 2  # the zygotes
    assert owner.wait(120) == 0
    assert_gone(worlds)


def test_slots_of_a_killed_process_leave_no_process(owner, slots):
    worlds = json.loads(owner.stdout.readline())
    assert len(worlds) >= slots + 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert_gone(worlds)


def test_a_host_that_is_closed_while_it_makes_worlds_leaves_no_process(monkeypatch, tmp_path):
    """And it says so afterwards. Its zygotes are those of fake_zygote.py."""
    fake, command = Path(__file__).with_name("fake_zygote.py"), forks.backend_command
    monkeypatch.setattr(forks, "backend_command", lambda python, backend: command(python, fake))
    before = psutil.Process().children(recursive=True)
    host = Host(Path(sys.executable), Roots(tmp_path, tmp_path, "fake"))
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
