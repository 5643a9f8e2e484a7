"""No process is left behind: 64 slots opened and closed, and as many after their owner is killed; 8 outside the campaign."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

SCRIPT = """
import json, sys, psutil, eh_gym

SLOTS = int(sys.argv[1])

def main():
    envs = eh_gym.make_vec("EH-AppWorld-v0", SLOTS, split="mini", max_workers=8)
    ids = envs.envs[0].unwrapped.task_ids
    envs.envs[0].unwrapped.prepare([ids[0]] * 4)
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
    assert len(left) <= 2 + 4  # the zygotes, and the worlds that were prepared and not used
    assert owner.wait(120) == 0
    assert_gone(worlds)


def test_slots_of_a_killed_process_leave_no_process(owner, slots):
    worlds = json.loads(owner.stdout.readline())
    assert len(worlds) >= slots + 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert_gone(worlds)
