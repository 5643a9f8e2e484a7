import json
import os
import pickle
import signal
import subprocess
import sys

import pytest
from child import python

from eh_gym import ElasticHorizon, EpisodeOutcome, SharedHorizon
from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import FixedHorizon, LinearHorizon
from eh_gym.integrations import folder
from eh_gym.integrations.folder import FolderHorizon

WORKER = """
import sys
from eh_gym import ElasticHorizon, EpisodeOutcome
from eh_gym.integrations.folder import FolderHorizon
horizon = FolderHorizon(sys.argv[1], ElasticHorizon(k0=40), 3)
for _ in range(5):
    horizon.record(EpisodeOutcome(4, horizon.horizon, True))
print(horizon.owner, horizon.horizon)
"""


def elastic(**told):
    return ElasticHorizon(**{"k0": 20, "k_min": 2, "min_successes": 2, **told})


def worker(path):
    return python("-c", WORKER, path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}).split()


def test_the_first_process_owns_k_and_hears_all(tmp_path):
    owner, alone = FolderHorizon(tmp_path / "new", elastic(), 3), elastic()
    assert worker(tmp_path / "new") == ["False", "20"]  # the owner's K, and it moves where the owner is
    for _ in range(5):
        alone.record(EpisodeOutcome(4, 20, True))
    alone.update()
    k = alone.horizon
    assert owner.horizon == k < 20
    for last in (k, alone.horizon):  # 2 are left over, so 1 is enough for the second update
        owner.record(EpisodeOutcome(4, last, True))
        alone.record(EpisodeOutcome(4, last, True))
        if last == k:
            alone.update()
    rows = list(map(json.loads, (tmp_path / "new" / "horizon.jsonl").read_text().splitlines()))
    assert [(row["episodes"], row["horizon/k"]) for row in rows] == [(3, k), (3, alone.horizon)]


def test_short_sessions_together_move_k_with_all_that_their_owners_heard(tmp_path):
    ks = []
    for _ in range(5):
        owner = FolderHorizon(tmp_path, LinearHorizon(10, 50, 1.0), 5)
        owner.record(EpisodeOutcome(4, owner.horizon, True))
        ks.append(owner.horizon)
        SharedHorizon.record(owner, EpisodeOutcome(4, 10, True))  # as another process does
        owner.close()
    assert ks == [10, 10, 11, 11, 11]  # after 1, 3, 5, 7 and 9 episodes
    owner = FolderHorizon(tmp_path, LinearHorizon(10, 50, 1.0), 5)
    for _ in range(12):
        SharedHorizon.record(owner, EpisodeOutcome(4, 10, True))
    assert owner.horizon == 14
    owner.close()


def test_a_full_disk_counts_no_episode_twice(tmp_path):
    owner = FolderHorizon(tmp_path, LinearHorizon(10, 50, 1.0), 2)
    (tmp_path / "horizon.jsonl").mkdir()
    owner.record(EpisodeOutcome(4, 10, True))
    with pytest.raises(OSError, match="directory"):
        owner.record(EpisodeOutcome(4, 10, True))
    owner.record(EpisodeOutcome(4, 10, True))
    assert owner.horizon == 11
    owner.close()


def test_a_child_that_was_forked_from_the_owner_plays_and_leaves_the_folder_to_it(tmp_path):
    owner = FolderHorizon(tmp_path, elastic(), 1)
    if (child := os.fork()) == 0:
        try:
            owner.record(EpisodeOutcome(4, owner.horizon, True))
            owner.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    joined = FolderHorizon(tmp_path, elastic(), 1)
    assert (owner.owner, joined.owner) == (True, False)
    assert owner.horizon == joined.horizon
    assert json.loads((tmp_path / "state.json").read_text())["lengths"] == [4]
    joined.close()
    if (child := os.fork()) == 0:  # one that lives on does not keep the folder
        signal.pause()
    try:
        owner.close()
        later = FolderHorizon(tmp_path, elastic(), 1)
        assert later.owner
        later.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_pickled_copy_reads_k_records_and_leaves_the_folder_to_its_owner(tmp_path):
    owner = FolderHorizon(tmp_path, elastic(), 2)
    copied = pickle.loads(pickle.dumps(owner))
    for _ in range(2):
        copied.record(EpisodeOutcome(4, copied.horizon, True))
    assert not copied.owner
    copied.close()
    assert owner.owner
    assert owner.horizon < 20


def test_a_folder_that_refused_a_controller_is_free_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_WAIT_S", 0.1)
    first = FolderHorizon(tmp_path, FixedHorizon(7), 4)
    first.record(EpisodeOutcome(4, 7, True))
    first.close()
    with pytest.raises(StateError) as kept:  # its traceback holds the object, as in a notebook
        FolderHorizon(tmp_path, elastic(), 4)
    again = FolderHorizon(tmp_path, FixedHorizon(7), 4)
    assert again.owner, kept
    again.close()
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(StateError):
        FolderHorizon(tmp_path, FixedHorizon(7), 4)


def test_the_address_of_an_owner_that_was_killed_is_not_followed(tmp_path, monkeypatch):
    """A joiner that comes between a new owner's lock and its address must not take up with the dead owner's K."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owner = FolderHorizon(tmp_path, elastic(), 1)
    with SharedHorizon(elastic()) as left_behind:
        (tmp_path / "address").write_bytes(pickle.dumps((gone.pid, left_behind.__getstate__())))
        monkeypatch.setattr(folder, "_WAIT_S", 0.2)
        with pytest.raises(ConfigError, match="did not write the address"):
            FolderHorizon(tmp_path, elastic(), 1)
    owner.close()
