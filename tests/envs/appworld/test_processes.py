"""No process is left behind: 64 slots opened and closed, and the same after their owner is killed."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

SLOTS = 64
SCRIPT = """
import json, sys, psutil, eh_gym

def main():
    envs = eh_gym.make_vec("EH-AppWorld-v0", {slots}, split="mini", max_workers=8)
    ids = envs.envs[0].unwrapped.task_ids
    envs.envs[0].unwrapped.prepare([ids[0]] * 4)
    envs.reset(options={{"task_ids": [ids[i % len(ids)] for i in range({slots})]}})
    said = envs.step(["print(7)"] * {slots})[0]
    assert set(said) == {{"7\\n"}}, said
    # A child of a world that this process has not reaped would be one too many.
    print(json.dumps([(c.pid, c.create_time()) for c in psutil.Process().children(recursive=True)]), flush=True)
    sys.stdin.readline()
    envs.close()
    print(json.dumps([(c.pid, c.create_time()) for c in psutil.Process().children(recursive=True)]), flush=True)

main()
"""


@pytest.fixture
def owner(appworld_python):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(slots=SLOTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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


def test_64_slots_opened_and_closed_leave_no_process(owner):
    worlds = json.loads(owner.stdout.readline())
    assert len(worlds) >= SLOTS + 2  # and the zygotes
    owner.stdin.write("\n")
    owner.stdin.flush()
    left = json.loads(owner.stdout.readline())
    assert len(left) <= 2 + 4  # the zygotes, and the worlds that were prepared and not used
    assert owner.wait(120) == 0
    assert_gone(worlds)


def test_64_slots_of_a_killed_process_leave_no_process(owner):
    worlds = json.loads(owner.stdout.readline())
    assert len(worlds) >= SLOTS + 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert_gone(worlds)
