import itertools
from dataclasses import replace

import pytest
from quiet_run import rows_of_run as run

from eh_gym.errors import MissingBackendError
from envs.actors import ActorEnv, close_shared_actors
from harness.rollout import environment
from harness.settings.section import changed

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def in_ray(quick, ray_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ACTOR_SLOTS", 8)
    yield changed(quick, env_workers="ray", ray_address="auto", out=tmp_path / "ray")
    close_shared_actors()


def test_metrics_are_those_of_local_environments(quick, in_ray):
    env = "EH-Cabinet-v0,EH-CabinetLocked-v0"
    changes = {"env": env, "updates": 2, "env_threads": 16, "eval_tasks": 2}
    changes |= {"warm_start.max_batches": 150, "warm_start.polish_batches": 0}
    rows = run(changed(in_ray, **changes))
    assert rows == run(changed(quick, **changes))
    assert len(rows) == 2
    assert 0 < rows[0]["rollout/success"] < 1
    for name in env.split(","):
        assert rows[0][f"rollout/episodes_of/{name}"] == 8
    for name in ("evaluation.json", "episodes/update-000001.jsonl"):
        assert (in_ray.out / name).read_text() == (quick.out / name).read_text()


@pytest.mark.campaign
def test_a_node_lost_in_the_middle_costs_its_episodes_only(quick, in_ray, ray_nodes, monkeypatch):
    changes = {"updates": 2, "eval_tasks": 0, "env_threads": 16, "rollout": "streaming"}
    plain_step, steps, doomed = ActorEnv.step, itertools.count(), 0

    def step(env, action):
        nonlocal doomed
        if next(steps) == 24:  # of 16 environments: most are in their second step
            lost = env._pool.nodes[0]
            doomed = sum(actor.seats for actor in env._pool._actors if actor.node == lost)
            ray_nodes.kill(lost)
        return plain_step(env, action)

    with monkeypatch.context() as patch:
        patch.setattr(ActorEnv, "step", step)
        # Four actors: mostly two on each node, but Ray promises no equal spread.
        patch.setattr(environment, "ACTOR_SLOTS", 4)
        rows = run(changed(in_ray, **changes))
    local = run(changed(quick, **changes))
    assert [row["rollout/episodes"] for row in rows] == [16, 16]
    assert [row["rollout/environment_errors"] for row in rows] == [0, 0]
    assert 1 <= rows[0]["rollout/environment_retries"] <= doomed  # nobody tries the lost node's other actors
    assert rows[0]["tokens/failed_attempts"] > 0
    same = ("rollout/success", "rollout/length_mean", "tokens/update", "rollout/truncated")
    assert {name: rows[0][name] for name in same} == {name: local[0][name] for name in same}


def test_the_trainer_s_machine_needs_no_backend(in_ray, bfcl_python, monkeypatch, tmp_path):
    far = changed(in_ray, env="EH-BFCL-v0", env_args={"workers": 1}).environment
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path))  # of this process; the nodes have another
    with pytest.raises(MissingBackendError):
        environment.task_environment(replace(far, env_workers="local", ray_address=""), far.env)
    env = environment.task_environment(far, environment.environment_spec(far, slots=16, temperature=1.0))
    assert len(env.unwrapped.task_ids) == 480
    assert env.reset(seed=0)[1]["task_id"] in env.unwrapped.task_ids
    env.close()
