import pytest
from quiet_run import rows_of_run as run

from eh_gym.errors import UserCodeError, WorkerDied
from envs.cabinet.env import CabinetEnv
from harness.evaluation.play import play_policy
from harness.records.metrics import read_metrics
from harness.rollout.environment import task_environment
from harness.settings.section import changed
from harness.training import build

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _sound_teacher(monkeypatch):
    def sound(*args):
        env = task_environment(*args)
        env.unwrapped.fails, env.unwrapped._calls = False, 0  # it was reset once to look at it
        return env

    monkeypatch.setattr(build, "task_environment", sound)


class FlakyCabinet(CabinetEnv):
    """Every environment's first reset fails, and later every 41st call."""

    fails = True

    def __init__(self, split="train"):
        super().__init__(split)
        self._calls = 0

    def reset(self, *, seed=None, options=None):
        if self.fails:
            self._calls += 1
            if self._calls == 1:
                raise WorkerDied("gone")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._calls += bool(self._calls)
        if self._calls and self._calls % 41 == 0:
            return "failed", 0.0, False, True, {"environment_error": "WorkerDied: gone", "success": False}
        return super().step(action)


FLAKY = f"{__file__}:FlakyCabinet"
NO_SUCCESS = {"warm_start.episodes": 20, "warm_start.max_batches": 1, "warm_start.polish_batches": 0}
"""Enough where success plays no part: every environment id is cloned anew, which takes 8 s."""


def test_training_goes_on_when_environments_fail(quick, tmp_path):
    config = changed(quick, updates=2, eval_tasks=0, slots=4, **NO_SUCCESS)
    sound = run(changed(config, out=tmp_path / "sound", env="EH-Cabinet-v0"))
    rows = run(changed(config, env=FLAKY))
    for row, expected in zip(rows, sound, strict=True):
        assert row["rollout/environment_errors"] == 0
        assert row["rollout/environment_retries"] > 0
        same = ("rollout/success", "rollout/length_mean", "tokens/update", "rollout/episodes")
        assert {name: row[name] for name in same} == {name: expected[name] for name in same}
    assert sum(row["tokens/failed_attempts"] for row in rows) > 0


class DeadCabinet(CabinetEnv):
    fails = True

    def reset(self, *, seed=None, options=None):
        if self.fails:
            raise WorkerDied("the disk of its machine is gone")
        return super().reset(seed=seed, options=options)


def test_an_environment_that_stays_dead_ends_the_run(quick):
    with pytest.raises(UserCodeError, match=r"all 16 episodes .*machine is gone.* step 0"):
        run(changed(quick, updates=9, eval_tasks=0, env=f"{__file__}:DeadCabinet", **NO_SUCCESS))
    assert len(read_metrics(quick.out / "metrics.jsonl")) == 2


def test_episodes_that_fail_after_every_retry_are_counted_and_training_goes_on(quick, monkeypatch):
    monkeypatch.setattr("harness.rollout.episode.RETRIES", 0)
    rows = run(changed(quick, updates=2, eval_tasks=0, env=FLAKY, **NO_SUCCESS))
    assert [row["rollout/environment_retries"] for row in rows] == [0, 0]
    assert rows[0]["rollout/environment_errors"] == 16  # every slot's first reset
    assert rows[0]["rollout/episodes"] == 0
    assert rows[0]["horizon/k_mean"] is None  # no reset has told a K
    assert rows[1]["horizon/k_mean"] == rows[1]["horizon/k"]
    assert rows[1]["rollout/episodes"] == 16 - rows[1]["rollout/environment_errors"] > 0


def test_the_evaluation_is_played_as_the_training_is(quick, monkeypatch):
    seen = []

    def spy(*args, **kwargs):
        seen.append(args[4].rollout)
        return play_policy(*args, **kwargs)

    monkeypatch.setattr("harness.evaluation.held_out.play_policy", spy)
    run(changed(quick, updates=1, eval_tasks=2, rollout="streaming", slots=4))
    assert seen == ["streaming"] * 4  # sampled and greedy, before and after
