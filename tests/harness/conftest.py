import fcntl
import os
import signal
from pathlib import Path

import pytest
import torch
from made_up_runs import write_sweep
from rich.console import Console

from harness.clone.clones import clone_expert
from harness.machine.ranks import Ranks
from harness.rollout.environment import task_environment
from harness.settings.grpo import from_recipe
from harness.settings.section import changed
from harness.terminal.display import Display
from harness.training.first_policy import load

CLONED = changed(from_recipe("quickstart"), **{"warm_start.max_optimal_steps": 9})
"""A clone that succeeds more often than that of the quick start."""


def pytest_collection_modifyitems(items):
    """A lost request or answer hangs: 60 s end a test of the rollout or of agents, ten times what any but a training
    takes."""
    for item in items:
        folder, name = item.path.parent.parent, item.path.parent.name
        if folder == Path(__file__).parent and name in ("agents", "rollout") and "quick" not in item.fixturenames:
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """A cache for warm starts that is this session's own, all its processes'; BFCL's virtualenv stays where it is."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def own_cache(cache, monkeypatch):
    monkeypatch.setattr("harness.clone.clones.cache_dir", lambda: cache)
    return cache


@pytest.fixture
def signals_are_heard():
    """The tests' own process may ignore Ctrl-C, as one in the background does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        assert signal.signal(number, handler) is signal.default_int_handler  # a run leaves it as it was


@pytest.fixture
def quick(tmp_path):
    few = {"updates": 4, "tasks_per_update": 4, "group_size": 4, "eval_tasks": 4, "min_successes": 2}
    return changed(CLONED, **few, checkpoint_every=1, out=tmp_path / "run")


@pytest.fixture(scope="session")
def trained(cache):
    config, ranks, display = CLONED, Ranks(), Display(Console(quiet=True))
    env = task_environment(config.environment, config.environment.env)
    with pytest.MonkeyPatch.context() as patch, (cache / "lock").open("w") as lock:
        patch.setattr("harness.clone.clones.cache_dir", lambda: cache)
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process clones, the others wait for it
        clone = clone_expert(config, env, load(config, env, "cpu", ranks, display), "cpu", display, cache)
    return load(config, env, "cpu", ranks, display, clone=clone)  # the one that `quick` starts from


@pytest.fixture(scope="session")
def trained_folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    trained.save(folder)
    return folder


@pytest.fixture(scope="session")
def child_env():
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def stand_in_server(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import stand_in_server

    return stand_in_server


@pytest.fixture
def sweep(tmp_path):
    return lambda **how: write_sweep(tmp_path / "sweep", **how)
