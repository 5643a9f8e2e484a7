"""Who runs when the steps of worlds need more processors than there are. Clock and processes are the tests' own."""

import logging
import signal
import socket

import pytest

from envs.appworld import turns as module
from envs.appworld.backend import cgroups
from envs.appworld.turns import Step, Turns

PROCESSORS = 2


class Process:
    def __init__(self, threads=1):
        self.cpu_s = self.main_s = self.delay_s = 0.0
        self.count, self.runs, self.signals = threads, True, []

    def times(self):
        return self.cpu_s, self.main_s, self.delay_s

    def threads(self):
        return self.count

    def signal(self, number):
        self.signals.append(number)
        self.runs = self.runs if number == signal.SIGALRM else number == signal.SIGCONT
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time, which only tests change, and the turns of this process."""

    class Clock:
        now, turns = 1000.0, Turns()

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "turns", lambda: clock.turns)
    monkeypatch.setattr(module, "processors", lambda: PROCESSORS)
    return clock


def shares(clock, steps, turns):
    """The share of the turns in which each step runs. All compute as much as they can."""
    ran = [0] * len(steps)
    for _ in range(turns):
        clock.now += module._TURN_S
        clock.turns.share()
        for i, step in enumerate(steps):
            running = all(process.runs for process in step._processes)
            assert running or not any(process.runs for process in step._processes)
            ran[i] += running
            step._processes[-1].cpu_s += running * module._TURN_S
            step.refresh()
    return [count / turns for count in ran]


def begun(clock, *threads):
    steps = [Step(Process(), Process(count), 30.0) for count in threads]
    clock.turns._steps.update(dict.fromkeys(steps))
    for step in steps:
        step._processes[-1].cpu_s += 1.0
        step.refresh()
    return steps


def test_a_step_whose_code_was_killed_still_gets_its_turns(clock):
    steps = begun(clock, 2, 2)
    clock.turns.share()
    stopped = next(step for step in steps if not step._processes[0].runs)
    stopped._processes[1].cpu_s = 0.0  # it has ended
    stopped.refresh()
    assert shares(clock, steps, 40)[steps.index(stopped)] >= 0.4


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ((1, 1), [1, 1]),  # there is room
        ((1, 1, 1, 1), [0.5] * 4),
        ((4, 4), [0.5] * 2),  # each needs all processors
        ((1,) * 8, [0.25] * 8),
    ],
)
def test_steps_that_compute_for_long_take_turns(clock, threads, expected):
    assert shares(clock, begun(clock, *threads), 80) == pytest.approx(expected, abs=0.03)


def test_they_give_way_to_resets_and_to_steps_that_have_just_begun_and_come_back(clock):
    long = begun(clock, 4, 4)
    with clock.turns.reset():
        assert sum(shares(clock, long, 80)) == pytest.approx(1 / module._SHARE, abs=0.03)
    fresh = Step(Process(), Process(), 30.0)
    with clock.turns.running(fresh):
        assert [step._processes[0].runs for step in long] != [True, True]
        # Within a second, or when it has computed for long itself, it is like the others.
        shares(clock, long, 20)
        assert sum(shares(clock, long, 80)) == pytest.approx(1, abs=0.03)
        assert fresh._processes[0].runs
    while len(long) > 1:
        with clock.turns.running(long.pop()):
            pass
    assert shares(clock, long, 10) == [1.0]


@pytest.mark.parametrize(
    ("passes_s", "cpu_s", "main_s", "delay_s", "ran_s"),
    [
        (0.1, 0.0, 0.0, 0.0, 0.1),  # it waits for something
        (0.1, 0.02, 0.02, 0.08, 0.02),  # others hold the processors
        (0.1, 0.2, 0.01, 0.09, 0.1),  # its own threads hold both
        (0.1, 0.06, 0.02, 0.07, 0.07),  # its threads and others
        (120.0, 0.0, 0.0, 0.0, 0.2),  # all stood still
        (1.0, 2.0, 1.0, 0.0, 1.0),  # this process alone stood still
    ],
)
def test_a_step_has_the_time_in_which_it_could_run(clock, passes_s, cpu_s, main_s, delay_s, ran_s):
    shell = Process()
    step = Step(Process(), shell, 30.0)
    for count in (1, 2):
        shell.cpu_s, shell.main_s, shell.delay_s = count * cpu_s, count * main_s, count * delay_s
        clock.now += passes_s
        step.refresh()
        assert step.ran_s == pytest.approx(count * ran_s)
    step.go(False)
    clock.now += passes_s
    step.refresh()
    assert step.ran_s == pytest.approx(2 * ran_s)  # it was others' turn


def test_a_step_ends_at_its_timeout_and_at_a_bound_of_what_was_lost(clock, caplog, monkeypatch):
    apps, shell = Process(), Process()
    step = Step(apps, shell, 2.0)
    here, there = socket.socketpair()

    def poll(self, timeout_ms):
        clock.now += timeout_ms / 1000
        shell.delay_s += timeout_ms / 1000
        return []

    monkeypatch.setattr(module.select, "poll", lambda: type("Poll", (), {"register": lambda *_: None, "poll": poll})())
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
        step.wait(here)
    # 20 s are given for what was lost, and the code is killed half a second after the signal.
    assert clock.now - step.began == pytest.approx(20 + 2.5, abs=0.2)
    assert shell.signals.count(signal.SIGALRM) == 1
    assert [record.message.split(":")[0] for record in caplog.records] == ["this machine is overloaded"]
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/a/b", {"cpu.max": "300000 100000", "a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("7:cpu,cpuacct:/host/id\n0::/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2),
        ("7:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 16),
    ],
)
def test_processors_are_those_of_the_container_s_quota(monkeypatch, tmp_path, own, files, expected):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    monkeypatch.setattr(cgroups.os, "sched_getaffinity", lambda _: range(16))
    assert cgroups.processors.__wrapped__() == expected
