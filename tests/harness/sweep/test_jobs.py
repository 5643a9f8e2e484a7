"""Jobs side by side: limits, failures, the places they run in, and that they end with their parent."""

import itertools
import re
import subprocess
import sys
import time

import psutil
import pytest
from processes import gone, lives

from eh_gym.errors import ConfigError
from harness.records.files import lock_folder
from harness.sweep.jobs import Job, job_slots, run_jobs


def job(folder, name, code):
    return Job(name, f"the job {name}", (sys.executable, "-c", code), folder / f"{name}.log")


@pytest.fixture
def lock(tmp_path):
    with lock_folder(tmp_path, "it is busy") as held:
        yield held


def test_jobs_run_in_order_as_many_at_once_as_there_are_slots_and_a_failure_stops_none(tmp_path, lock):
    codes = {
        "a": "print('hello', flush=True)",
        "b": "for i in range(20): print('line', i)\nexit(3)",
        "c": "import os; os.kill(os.getpid(), 9)",
        "d": "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
    }
    jobs = [job(tmp_path, name, code) for name, code in codes.items()]
    said = []
    slots = [{"CUDA_VISIBLE_DEVICES": "3"}] * 2
    assert run_jobs(jobs, slots, said.append, done=3, lock=lock) == {"a": 0, "b": 3, "c": -9, "d": 0}
    assert [line for line in said if line.startswith("start")] == [f"start   the job {name}" for name in "abcd"]
    assert max(itertools.accumulate(1 if line.startswith("start") else -1 for line in said)) == 2
    assert [line.split(" s ")[1] for line in said if line.startswith("done")] == ["(4 of 7)", "(5 of 7)"]
    b, c = sorted(line for line in said if line.startswith("FAILED"))
    assert re.match(r"FAILED  the job b after \d+ s with exit code 3; the end of .*b.log:\n        line 5\n", b)
    assert b.endswith("\n        line 19")
    assert "with exit code -9" in c
    run_jobs(jobs[3:], [{"CUDA_VISIBLE_DEVICES": "5"}], print, done=0, lock=lock)
    assert jobs[3].log.read_text() == "3\n5\n"  # a log is continued


def test_slots_are_gpus_or_cores():
    assert job_slots(0, gpus=[], per_job=1, cores=4, threads=1) == [{"OMP_NUM_THREADS": "1"}] * 4
    assert job_slots(0, gpus=[], per_job=1, cores=4, threads=0) == [{"OMP_NUM_THREADS": "4"}]
    assert job_slots(0, gpus=[], per_job=2, cores=4, threads=0) == [{"OMP_NUM_THREADS": "2"}]
    pairs = job_slots(0, gpus=["0", "1", "2", "5", "6"], per_job=2, cores=1, threads=1)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in pairs] == ["0,1", "2,5"]
    shared = job_slots(3, gpus=["0", "1"], per_job=1, cores=1, threads=1)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in shared] == ["0", "1", "0"]
    with pytest.raises(ConfigError, match=r"4 GPUs .*2 are visible"):
        job_slots(0, gpus=["0", "1"], per_job=4, cores=1, threads=1)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the children on Linux alone")
def test_jobs_end_with_a_parent_that_is_killed(tmp_path):
    code = f"""
import sys
from pathlib import Path
from harness.sweep.jobs import Job, run_jobs
lock = sys.stdout.fileno()
folder = Path({str(tmp_path)!r})
sleep = "import time; print('up', flush=True); time.sleep(600)"
run_jobs([Job(n, n, (sys.executable, "-c", sleep), folder / n) for n in "ab"], [{{}}, {{}}], print, done=0, lock=lock)
"""
    parent = psutil.Popen([sys.executable, "-c", code])
    try:
        while not all((tmp_path / n).exists() and (tmp_path / n).read_text() for n in "ab"):
            assert parent.poll() is None
            time.sleep(0.02)
        children = parent.children()
        assert len(children) == 2
    finally:
        parent.kill()
        parent.wait()
    assert gone(*children)


def test_an_interrupt_ends_the_jobs(tmp_path, lock):
    def interrupt(line):
        raise KeyboardInterrupt

    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(tmp_path, "a", "import time; time.sleep(600)")], [{}], interrupt, done=0, lock=lock)
    assert not [p for p in psutil.Process().children() if p not in before and lives(p)]


def test_a_job_leads_its_session_and_holds_the_lock(tmp_path, lock):
    code = f"import os; assert os.getsid(0) == os.getpid(); os.fstat({lock})"  # fails where the descriptor is not open
    assert run_jobs([job(tmp_path, "leads", code)], [{}], print, done=0, lock=lock) == {"leads": 0}


def test_a_folder_is_one_process_s_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.records.files._PATIENCE_S", 0.2)
    with lock_folder(tmp_path, "it is busy") as lock:
        child = subprocess.Popen(["sleep", "600"], pass_fds=(lock,))
    orphaned = lock_folder(tmp_path, "it is busy")
    with pytest.raises(ConfigError, match="it is busy"):
        orphaned.__enter__()
    child.kill()
    child.wait()
    with lock_folder(tmp_path, "it is busy"):
        pass
