"""What several folders of tests need: the backends, a chat endpoint, and a Ray cluster.

A test that needs a backend, or Ray, is skipped where it is missing, and fails there under EH_REQUIRE_BACKENDS=1 (tox,
CI). What is imported here registers the environments for all tests.
"""

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from eh_gym.errors import MissingBackendError
from eh_gym.worker import close_shared_pools
from envs.backends import backend_python
from envs.description import description_of

try:
    import hypothesis
except ImportError:  # not there where the wheel alone is tested
    pass
else:  # an example fails for what it finds, not for its time on a busy machine; every run has the same examples
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=slow)
    hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session")
def installed():
    def python_of(env_id):
        about = description_of(env_id)
        if about.backend is None:
            return None
        if sys.version_info < about.backend.python:
            pytest.skip(f"{about.backend.name} needs Python {about.backend.python} or later")
        _there(lambda: about.task_ids(about.test_split))
        return _there(lambda: backend_python(about.backend.name))

    yield python_of
    close_shared_pools()


@pytest.fixture(scope="session")
def bfcl_python(installed):
    return installed("EH-BFCL-v0")


@pytest.fixture(scope="session")
def appworld_python(installed):
    return installed("EH-AppWorld-v0")


@pytest.fixture
def chat_server(monkeypatch):
    """The module with the local chat endpoint; proxies that the machine may name are not asked for it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    import chat_server

    return chat_server


class RayNodes:
    """A Ray cluster on this machine: a head without cores, and nodes of 4 cores that come and go."""

    def __init__(self, ray):
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes = {}
        ray.init(self._cluster.address, log_to_driver=False)

    def at_least(self, count):
        while len(self._nodes) < count:
            node = self._cluster.add_node(num_cpus=4)
            self._nodes[node.node_id] = node

    def kill(self, node_id):
        """Kills all processes of a node at once, as when its machine is gone; Ray leaves the actors for a while."""
        import psutil  # not there where the wheel alone is tested

        node = self._nodes.pop(node_id)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in [raylet, *raylet.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # some end by themselves when the raylet does
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def ray_cluster():
    ray = _ray()
    folder = tempfile.mkdtemp(prefix="eh-ray-")  # its sockets' paths must be short
    with pytest.MonkeyPatch.context() as patch:
        # Also the file that tells "auto" where the cluster is: in /tmp/ray it would be shared with other test
        # processes, and Ray does not make that folder.
        patch.setenv("RAY_TMPDIR", folder)
        os.mkdir(os.path.join(folder, "ray"))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token in the user's home would be asked for
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        root = Path(__file__).parents[1]
        paths = [str(root), str(root / "tests" / "envs" / "actors"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        nodes = RayNodes(ray)
        yield nodes
        ray.shutdown()
        nodes.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ray_nodes(ray_cluster):
    ray_cluster.at_least(2)
    return ray_cluster


def _ray():
    try:
        import ray
    except ImportError:
        if os.environ.get("EH_REQUIRE_BACKENDS") == "1":
            pytest.fail("Ray is not installed; run: pip install -e '.[ray]'")
        pytest.skip("Ray is not installed")
    return ray


# The files that take longest, in this order. With --dist loadfile they begin first, so that none is left to run alone.
LONGEST = (
    *("test_pretrained.py", "test_benchmarks.py", "appworld/test_export.py", "test_grpo.py", "test_examples.py"),
    *("test_rehearse.py", "test_ranks.py", "test_api.py", "envs/test_conformance.py", "test_overlap_and_failures.py"),
    *("test_notebooks.py", "test_attacks.py", "agents/test_training.py", "test_adaptations.py", "appworld/test_env.py"),
    *("test_confine.py", "test_vllm_server.py", "test_loop.py", "tau2/test_env.py", "test_code_blocks.py"),
    *("test_processes.py", "actors/test_pool.py", "test_commands.py"),
)


class LoggedDeprecations(logging.Handler):
    """Raises what transformers only logs: `warning_once` is no warning that setup.cfg's filters could make an error."""

    def emit(self, record):
        if "deprecated" in record.getMessage():
            raise DeprecationWarning(record.getMessage())


def pytest_configure(config):
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else runs with --device auto would not have the numbers of a CPU
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files that have the most tests
    logging.getLogger("transformers").addHandler(LoggedDeprecations(logging.WARNING))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """With ``-n logical``: one process more than cores, since many tests wait for processes of their own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_modifyitems(config, items):
    """The files that connect their process to Ray come last: a fork beside Ray's threads may hang for ever."""
    ray = {item.path for item in items if "ray_cluster" in item.fixturenames}
    several = hasattr(config, "workerinput")  # of pytest-xdist; in one process the order stays as it is written
    items.sort(key=lambda item: (item.path in ray, _rank(item) if several else 0))


def _rank(item):
    path = item.path.as_posix()
    return next((place for place, name in enumerate(LONGEST) if path.endswith(f"/{name}")), len(LONGEST))


def _there(find):
    try:
        return find()
    except MissingBackendError as missing:
        if os.environ.get("EH_REQUIRE_BACKENDS") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
