import pytest

from eh_gym import ElasticTimeLimit, make_vec
from eh_gym.errors import ConfigError


def test_without_a_controller_nothing_stops_an_episode():
    envs = make_vec("EH-Cabinet-v0", 2, split="dev", max_workers=0)
    envs.reset(seed=0)
    for _ in range(100):
        _, _, terminated, truncated, _ = envs.step(["list()"] * 2)
        assert not (terminated | truncated).any()
    assert not isinstance(envs.envs[0], ElasticTimeLimit)
    assert all(ids == envs.envs[0].unwrapped.task_ids for ids in envs.get_attr("task_ids"))
    envs.close()


def test_one_controller_serves_every_slot_and_update_every_counts_all_their_episodes(journal):
    # Eight slots end together: after 8, 16 and 24 episodes.
    controller, updates = journal(2), []
    envs = make_vec("EH-Cabinet-v0", 8, controller, update_every=12)
    for _ in range(3):
        task_ids = envs.reset(seed=0)[1]["task_id"].tolist()
        for _ in range(2):
            *_, infos = envs.step(["list()"] * 8)
        updates.append(controller.updates)
    envs.close()
    assert (infos["outcome"]["horizon"].tolist(), infos["outcome"]["task_id"].tolist()) == ([2] * 8, task_ids)
    assert [outcome.task_id for outcome in controller.outcomes] == task_ids * 3
    assert updates == [0, 1, 2]


@pytest.mark.parametrize(
    ("num_envs", "told", "message"),
    [
        *((wrong, {}, "num_envs must be") for wrong in (0, "3", 2.0, True, None)),
        (1, {"spilt": "dev"}, r"update_every.*got spilt"),
    ],
)
def test_wrong_arguments_are_refused(num_envs, told, message):
    with pytest.raises(ConfigError, match=message):
        make_vec("EH-Cabinet-v0", num_envs, **told)
