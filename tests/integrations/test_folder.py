"""Processes that share K through a folder."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest

from eh_gym import ElasticHorizon, EpisodeOutcome, SharedHorizon
from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import FixedHorizon
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
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(path)], capture_output=True, text=True, env=env, check=True
    )
    return done.stdout.split()


def test_the_first_process_owns_k_and_hears_all(tmp_path):
    owner, alone = FolderHorizon(tmp_path / "new", elastic(), 3), elastic()
    assert worker(tmp_path / "new") == ["False", "20"]  # the owner's K, and it moves where the owner is
    for _ in range(5):
        alone.record(EpisodeOutcome(4, 20, True))
    alone.update()
    assert owner.horizon == alone.horizon < 20
    owner.record(EpisodeOutcome(4, owner.horizon, True))  # 1 of 3
    assert json.loads((tmp_path / "new" / "state.json").read_text()) == json.loads(json.dumps(alone.state_dict()))
    [row] = map(json.loads, (tmp_path / "new" / "horizon.jsonl").read_text().splitlines())
    assert (row["episodes"], row["horizon/k"]) == (5, alone.horizon)


def test_a_later_run_goes_on_and_owns_the_folder(tmp_path):
    first = FolderHorizon(tmp_path, elastic(), 1)
    first.record(EpisodeOutcome(4, 20, True))
    first.record(EpisodeOutcome(4, 20, True))
    k = first.horizon
    first.close()
    later = FolderHorizon(tmp_path, elastic(), 1)
    assert later.owner
    assert later.horizon == k < 20
    later.close()
    with pytest.raises(StateError):
        FolderHorizon(tmp_path, FixedHorizon(5), 1)


def test_the_address_of_an_owner_that_was_killed_is_not_followed(tmp_path, monkeypatch):
    """A joiner that comes between a new owner's lock and its address must not take up with the dead owner's K."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owner = FolderHorizon(tmp_path, elastic(), 1)
    with SharedHorizon(elastic()) as left_behind:
        (tmp_path / "address").write_bytes(pickle.dumps((gone.pid, left_behind)))
        monkeypatch.setattr(folder, "_WAIT_S", 0.2)
        with pytest.raises(ConfigError, match="did not say within"):
            FolderHorizon(tmp_path, elastic(), 1)
    owner.close()
