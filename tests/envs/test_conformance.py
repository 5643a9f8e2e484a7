"""What every EH-* environment promises, checked on each; a backend that is not installed skips its own.

The contract is eh_gym.testing's, as users inherit it; what stands here holds for the project's own environments alone.
"""

import dataclasses
from collections.abc import Sequence

import gymnasium as gym
import pytest

from eh_gym import make_vec
from eh_gym.errors import ConfigError
from eh_gym.registration import ENTRY_POINTS
from eh_gym.testing import ExpertEnvContract
from envs.description import description_of


@pytest.fixture(scope="module", params=ENTRY_POINTS)
def env_id(request, installed):
    installed(request.param)
    return request.param


class TestEveryEnvironment(ExpertEnvContract):
    unknown_task_ids = ("no-such-task", "", "\0", "train-")

    @pytest.fixture(autouse=True)
    def _env_id(self, env_id):
        self.env_id, self.about = env_id, description_of(env_id)

    def make(self, **kwargs):
        return gym.make(self.env_id, **{"split": self.about.test_split, **kwargs})

    def make_slots(self, count):
        return make_vec(self.env_id, count, None, split=self.about.test_split)

    def test_malformed_actions_are_answered_and_never_raise(self, monkeypatch):
        if self.env_id == "EH-AppWorld-v0":  # one of the texts computes until a step's deadline, which is 30 s
            host = self.new().unwrapped._host
            monkeypatch.setattr(host, "settings", dataclasses.replace(host.settings, step_timeout_s=4.0))
        super().test_malformed_actions_are_answered_and_never_raise()

    @pytest.mark.parametrize("options", [{"task_idd": "x"}, {"task_id": None, "difficulty": 1}, ["task_id"], "task_id"])
    def test_an_option_that_no_reset_has_is_refused(self, options):
        with pytest.raises(ConfigError, match="options must be None or"):
            self.new().reset(options=options)

    def test_a_step_without_a_running_episode_is_refused(self):
        env, ended = self.new().unwrapped, False
        with pytest.raises(gym.error.ResetNeeded):
            env.step("")
        env.reset(seed=0)
        while not ended:
            ended = env.step(env.expert())[2]
        with pytest.raises(gym.error.ResetNeeded):
            env.step("")

    def test_an_unknown_split_or_argument_is_refused(self):
        with pytest.raises(ConfigError, match="split"):
            self.make(split="nope")
        with pytest.raises(TypeError, match="spilt"):
            self.make(spilt="dev")

    def test_the_splits_share_no_task_and_all_has_each(self):
        if "all" not in self.about.splits:
            pytest.skip("its splits have no union")
        ids = {split: self._closed_later(self.make(split=split)).unwrapped.task_ids for split in self.about.splits}
        assert self.about.counts() == {split: len(task_ids) for split, task_ids in ids.items()}
        parts = ids.keys() - {"all"}
        assert len(ids["all"]) == sum(len(ids[split]) for split in parts)
        for split in parts:
            assert isinstance(ids[split], Sequence)
            sample = {ids[split][i] for i in range(0, len(ids[split]), max(1, len(ids[split]) // 100))}
            assert sample
            assert all(type(task_id) is str for task_id in sample)
            assert all(task_id in ids["all"] for task_id in sample)
            assert not any(task_id in ids[other] for other in parts if other != split for task_id in sample)
