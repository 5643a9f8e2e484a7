import copy
import gc
import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter

import pytest
from child import python

from eh_gym.errors import ConfigError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, KeyedHorizon, SharedHorizon, TaskHorizon

METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]
DEADLINE_S = 120


@pytest.fixture(params=METHODS)
def context(request):
    return multiprocessing.get_context(request.param)


@pytest.fixture
def ledger(journal):
    return journal(15)


@pytest.fixture
def shared(ledger):
    with SharedHorizon(ledger) as shared:
        yield shared


def start(context, target, *args):
    process = context.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def join(*processes):
    for process in processes:
        process.join(DEADLINE_S)
        assert process.exitcode == 0


def test_what_record_returned_for_is_heard_once_and_in_order_though_writers_are_killed(
    context, readers, shared, ledger
):
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [
        start(context, readers.record_until_killed, shared, writer, send) for writer, (_, send) in enumerate(pipes)
    ]
    acknowledged = []
    for i, (process, (receive, send)) in enumerate(zip(processes, pipes, strict=True)):
        send.close()
        last = -1
        while last < 200 + 100 * i:
            assert receive.poll(DEADLINE_S)
            last = int.from_bytes(receive.recv_bytes(), "little")
            shared.record(EpisodeOutcome(9, 15, True, task_id=f"owner/{len(ledger.outcomes)}"))
            shared.update()
        os.kill(process.pid, signal.SIGKILL)
        process.join(DEADLINE_S)
        try:
            while receive.poll():
                last = int.from_bytes(receive.recv_bytes(), "little")
        except EOFError:
            pass
        acknowledged.append(last)
    shared.record(EpisodeOutcome(9, 15, True, task_id="after"))
    shared.update()
    assert ledger.outcomes[-1].task_id == "after"
    for writer, last in enumerate(acknowledged):
        mine = [outcome for outcome in ledger.outcomes if outcome.task_id.startswith(f"{writer}/")]
        assert len(mine) in (last + 1, last + 2)  # the one outcome whose record() was under way may be there or not
        assert mine == [readers.outcome(writer, i) for i in range(len(mine))]


def test_a_stump_left_by_a_killed_writer_harms_nobody(shared, ledger, readers):
    readers.record(shared, "a", 1)
    whole = os.pread(shared._journal, 1000, 0)
    for cut in range(1, len(whole)):
        os.write(shared._journal, whole[:cut])  # as if it had been killed there
        shared.update()
        readers.record(shared, cut, 1)
        shared.update()
    # Cut before its last newline, the outcome is all there and counts; it is the same one each time here.
    heard = Counter(outcome.task_id for outcome in ledger.outcomes)
    assert heard == {"a/0": 2, **{f"{cut}/0": 1 for cut in range(1, len(whole))}}


def test_a_reader_never_sees_a_k_that_nobody_set(context, readers, journal):
    # struct.pack_into zeroes the bytes before it sets them: a reader in between would see K = 0.
    with SharedHorizon(journal(15, 50)) as shared:
        here, there = context.Pipe()
        process = start(context, readers.watch, shared, there, 2_000_000)
        assert here.poll(DEADLINE_S)
        assert here.recv() == "looking"
        end = time.monotonic() + DEADLINE_S
        while not here.poll():
            assert time.monotonic() < end
            shared.update()
        seen = here.recv()
        join(process)
    assert seen == {15, 50}


def test_only_the_owner_updates_saves_loads_and_removes(context, readers, shared, ledger):
    receive, send = context.Pipe(duplex=False)
    process = start(context, readers.try_to_own, shared, send)
    assert receive.poll(DEADLINE_S)
    errors, pid = receive.recv()
    join(process)
    assert pid != os.getpid()
    assert [error.split("(")[0] for error in errors] == ["update", "state_dict", "load_state_dict"]
    assert all("call it on the original" in error for error in errors)
    assert (shared._folder / "journal").exists()
    assert ledger.updates == 0


def test_every_field_and_any_task_id_comes_through(shared, ledger, monkeypatch):
    outcomes = [
        EpisodeOutcome(1, 2, True, False, None),
        EpisodeOutcome(50, 50, False, True, "line\nbreak"),
        EpisodeOutcome(3, 50, False, False, 'ünï"code\u2028 \ud800'),
        EpisodeOutcome(3, 50, True, False, "x" * 100_000),
    ]
    for outcome in outcomes:
        shared.record(outcome)
    shared.update()
    assert ledger.outcomes == outcomes
    monkeypatch.setattr(os, "write", lambda fd, line: len(line) - 1)  # a full disk
    with pytest.raises(OSError, match="free some space"):
        shared.record(outcomes[0])


class Choosy(ElasticHorizon):
    def record(self, outcome):
        if outcome.length == 1:
            raise ConfigError("not this one")
        super().record(outcome)


def test_an_outcome_that_the_controller_refuses_costs_no_other():
    with SharedHorizon(Choosy(min_successes=1)) as shared:
        for length in (1, 9):
            shared.record(EpisodeOutcome(length, 50, True))
        with pytest.raises(ConfigError, match="not this one"):
            shared.update()
        assert shared.update()["horizon/boundary"] == 9


def test_close_removes_the_files_and_those_who_joined_go_on(ledger):
    shared = SharedHorizon(ledger)
    copied, pickled = pickle.loads(pickle.dumps(shared)), pickle.dumps(shared)
    assert copy.deepcopy(shared) is shared
    shared.close()
    shared.close()
    assert not shared._folder.exists()
    copied.record(EpisodeOutcome(4, 15, True))
    shared.update()
    assert len(ledger.outcomes) == 1
    with pytest.raises(ConfigError, match="is closed"):
        pickle.loads(pickled)


def test_files_and_descriptors_go_with_the_object(ledger):
    shared = SharedHorizon(ledger)
    folder, descriptor = shared._folder, shared._journal
    os.fstat(descriptor)
    del shared
    gc.collect()
    assert not folder.exists()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_files_go_when_the_owner_exits_but_not_when_its_child_does():
    code = """if True:
        import os, sys
        from eh_gym.horizon import FixedHorizon, SharedHorizon
        shared = SharedHorizon(FixedHorizon(3))
        if os.fork() == 0:
            sys.exit()  # with all exit handlers, unlike multiprocessing's children
        os.wait()
        print(shared._folder, os.path.exists(shared._folder / "journal"))
    """
    folder, existed = python("-c", code).split()
    assert existed == "True"
    assert not os.path.exists(folder)


def test_the_owner_hears_of_each_outcome_once(shared, ledger):
    copied = pickle.loads(pickle.dumps(shared))
    for each in (shared, copied):
        each.record(EpisodeOutcome(3, 10, True))
    for hears in (shared.state_dict, shared.update):
        hears()
        assert len(ledger.outcomes) == 2


class Each(ElasticHorizon):
    def horizon_for(self, info, seed):
        return 5


def test_wrong_controllers_are_refused(shared, journal):
    for wrong, message in (
        (shared, "shared already"),
        (15, "must have horizon, .* got 15"),
        (ElasticHorizon, "must have horizon, .* got <class"),
        (journal(float("nan")), "got nan"),
        (Each(), "info_keys"),
        (KeyedHorizon(lambda: ElasticHorizon(), "level"), "pickled"),
    ):
        with pytest.raises(ConfigError, match=message):
            SharedHorizon(wrong)
    assert not hasattr(shared, "horizon_for")


def quick_elastic():
    return ElasticHorizon(min_successes=3)


def ask(shared):
    return [shared.horizon_for({"task_id": name, "level": name}, None) for name in "ab"]


def record_and_ask(shared, pipe):
    for _ in range(4):
        shared.record(EpisodeOutcome(3, 15, True, task_id="a", info={"level": "a", "unread": object()}))
    pipe.send(ask(shared))
    pipe.recv()
    pipe.send(ask(shared))


@pytest.mark.parametrize("make", [lambda: KeyedHorizon(quick_elastic, "level"), lambda: TaskHorizon(min_episodes=1)])
def test_each_episode_has_the_k_of_its_task_in_every_process(context, make):
    with SharedHorizon(make()) as shared:
        ours, theirs = context.Pipe()
        process = start(context, record_and_ask, shared, theirs)
        before = ours.recv()
        shared.update()
        ours.send("updated")
        after = ours.recv()
        process.join()
        assert before[0] == before[1]
        assert after == ask(shared)
        assert after[0] < after[1] == before[1]


def test_those_who_joined_go_on_with_the_last_k_of_each_task_after_the_end():
    shared = SharedHorizon(TaskHorizon(min_episodes=1))
    asked, silent = (pickle.loads(pickle.dumps(shared)) for _ in range(2))
    before = ask(asked)
    shared.record(EpisodeOutcome(3, 15, True, task_id="a"))
    shared.update()
    shared.close()
    assert ask(asked) == ask(silent) == before
    asked.record(EpisodeOutcome(4, 15, True, task_id="a"))
    *_, lengths = shared.state_dict()["tasks"]["a"]
    assert lengths == [3, 4]
