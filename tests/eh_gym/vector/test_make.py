import pytest

from eh_gym import ElasticHorizon, ElasticTimeLimit, StagedHorizon, make_vec
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


def test_one_controller_serves_every_slot():
    controller = ElasticHorizon(k0=12, min_successes=4)
    envs = make_vec("EH-Cabinet-v0", 4, controller, split="dev")
    ids = envs.envs[0].unwrapped.task_ids
    infos = [envs.submit_reset(0, options={"task_id": i}).result(10)[1] for i in ids[:100]]
    easy = [info["task_id"] for info in infos if info["optimal_steps"] == 6][:4]
    envs.reset(options={"task_ids": easy})
    for _ in range(6):
        *_, terminated, _, infos = envs.step(envs.call("expert"))
    assert terminated.all()
    assert infos["outcome"]["horizon"].tolist() == [12] * 4
    assert infos["outcome"]["task_id"].tolist() == easy
    envs.close()
    assert controller.state_dict()["lengths"] == [6] * 4


def test_update_every_counts_the_episodes_of_all_slots():
    # Eight slots end together: after 8, 16 and 24 episodes.
    controller = StagedHorizon({0: 2})
    envs = make_vec("EH-Cabinet-v0", 8, controller, update_every=12, max_workers=0)
    updates = []
    for _ in range(3):
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(["list()"] * 8)
        updates.append(controller.state_dict()["updates"])
    envs.close()
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
