import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import eh_gym  # noqa: F401 - registers the ids
from eh_gym.errors import ConfigError
from eh_gym.horizon import FixedHorizon
from eh_gym.spaces import UnicodeText
from eh_gym.vector import ThreadVectorEnv
from eh_gym.wrappers import ElasticTimeLimit

WORKERS = [0, 1, 3]


class Toy(gym.Env):
    """Counts; the action is what happens: a str to echo, "end", "cut", "boom", or seconds to sleep as "0.01"."""

    observation_space = UnicodeText(100)
    action_space = UnicodeText(100)

    def __init__(self, name="toy"):
        self.name, self.resets, self.steps, self.inside, self.log = name, 0, 0, 0, []

    def _enter(self, what):
        self.inside += 1
        assert self.inside == 1, "two calls of one slot at once"
        self.log.append(what)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._enter("reset")
        if options and options.get("boom"):
            self.inside -= 1
            raise OSError("no reset")
        self.resets, self.steps = self.resets + 1, 0
        self.inside -= 1
        return f"é {self.name} {self.resets}", {"options": options, "seed": seed}

    def step(self, action):
        self._enter(action)
        try:
            if action == "boom":
                raise OSError(f"{self.name} broke")
            if action[:2] == "0.":
                time.sleep(float(action))
            self.steps += 1
            return f"{action} {self.steps}", 0.5, action == "end", action == "cut", {"n": self.steps}
        finally:
            self.inside -= 1

    def close(self):
        self.log.append("close")


@pytest.fixture(params=WORKERS)
def toys(request):
    envs = ThreadVectorEnv([lambda name=name: Toy(name) for name in "abc"], max_workers=request.param)
    yield envs
    envs.close()


def _assert_same(ours, theirs):
    assert data_equivalence(ours, theirs, exact=True), f"{ours}\n{theirs}"


@pytest.mark.parametrize("max_workers", WORKERS)
@pytest.mark.parametrize("seed", [3, [7, 2, 1, 4]])
def test_equals_gymnasiums_sync_vector_env(max_workers, seed):
    cartpoles = [lambda: gym.make("CartPole-v1")] * 4
    ours = ThreadVectorEnv(cartpoles, max_workers=max_workers)
    theirs = SyncVectorEnv(cartpoles, autoreset_mode=AutoresetMode.DISABLED)
    assert (ours.num_envs, ours.single_action_space) == (theirs.num_envs, theirs.single_action_space)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert ours.metadata == theirs.metadata
    _assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))
    rng = np.random.default_rng(0)
    resets = 0
    for step in range(200):
        actions = rng.integers(2, size=4)
        stepped = ours.step(actions)
        _assert_same(stepped, theirs.step(actions))
        ended = stepped[2] | stepped[3]
        if ended.any():
            resets += 1
            again = [step + i for i in range(4)] if step % 2 else step
            _assert_same(
                ours.reset(seed=again, options={"reset_mask": ended}),
                theirs.reset(seed=again, options={"reset_mask": ended}),
            )
    assert resets > 10
    ours.close()
    theirs.close()


def test_text_is_batched_as_a_tuple(toys):
    observations, infos = toys.reset(seed=5)
    assert observations == ("é a 1", "é b 1", "é c 1")
    assert observations in toys.observation_space
    assert infos["seed"].tolist() == [5, 6, 7]
    assert toys.reset(seed=np.array([8, 2, 4]))[1]["seed"].tolist() == [8, 2, 4]
    observations, rewards, terminated, truncated, infos = toys.step(("hi", "end", "cut"))
    assert observations == ("hi 1", "end 1", "cut 1")
    assert (rewards.dtype, rewards.tolist()) == (np.dtype(np.float64), [0.5, 0.5, 0.5])
    assert (terminated.tolist(), truncated.tolist()) == ([False, True, False], [False, False, True])
    assert infos["n"].tolist() == [1, 1, 1]


def test_task_ids_go_to_their_slots(toys):
    options = {"task_ids": ["t0", None, "t2"], "level": 3, "reset_mask": np.ones(3, bool)}
    _, infos = toys.reset(options=options)
    assert set(options) == {"task_ids", "level", "reset_mask"}  # the caller's dict is left alone
    assert infos["options"]["task_id"].tolist() == ["t0", None, "t2"]
    assert infos["options"]["_task_id"].tolist() == [True, False, True]
    assert infos["options"]["level"].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("seed", "options", "message"),
    [
        (1.5, None, "seed must have 3 values"),
        (None, {"reset_mask": [True, False, True]}, r"bool array of shape \(3,\)"),
        (None, {"reset_mask": np.zeros(3, bool)}, "at least one True"),
        (None, {"task_ids": ["a"]}, r"task_ids'\] must have 3 values"),
    ],
)
def test_bad_resets_are_refused_before_anything_moves(seed, options, message):
    toys = ThreadVectorEnv([Toy] * 3)
    with pytest.raises(ConfigError, match=message):
        toys.reset(seed=seed, options=options)
    assert toys.get_attr("resets") == (0, 0, 0)
    toys.close()


def test_stepping_an_ended_slot_is_refused_and_moves_no_slot(toys):
    toys.reset()
    toys.step(("end", "x", "cut"))
    with pytest.raises(ResetNeeded, match=r"slots \[0, 2\] have no running episode.*reset_mask"):
        toys.step(("x", "x", "x"))
    assert toys.get_attr("steps") == (1, 1, 1)
    with pytest.raises(ResetNeeded, match="slot 2 has no running episode"):
        toys.submit_step(2, "x").result(60)
    assert toys.submit_step(1, "x").result(60)[0] == "x 2"


def test_a_failing_slot_raises_after_the_others_have_stepped(toys):
    toys.reset()
    with pytest.raises(
        OSError, match=r"b broke\nslot 1 raised this and needs a reset; the others have done their step"
    ):
        toys.step(("0.02", "boom", "0.02"))
    assert toys.get_attr("steps") == (1, 0, 1)
    with pytest.raises(ResetNeeded, match=r"slots \[1\]"):
        toys.step(("x", "x", "x"))
    toys.reset(options={"reset_mask": np.array([False, True, False])})
    assert toys.step(("x", "x", "x"))[0] == ("x 2", "x 1", "x 2")


def test_a_controller_hears_the_slots_in_their_order_and_all_though_it_fails_for_one():
    class Controller(FixedHorizon):
        def __init__(self):
            super().__init__(1)
            self.heard = []

        def record(self, outcome):
            self.heard.append(outcome.info["slot"])
            if outcome.info["slot"] == "a" and len(self.heard) < 4:
                raise OSError("disk full")

    class Slot(Toy):
        def reset(self, *, seed=None, options=None):
            observation, _ = super().reset(seed=seed, options=options)
            return observation, {"slot": self.name}

    controller = Controller()
    envs = ThreadVectorEnv([lambda name=name: ElasticTimeLimit(Slot(name), controller) for name in "abc"])
    envs.reset()
    with pytest.raises(OSError, match="disk full"):
        envs.step(("0.1", "0.05", "x"))  # in whatever order they end
    assert controller.heard == ["a", "b", "c"]
    envs.reset()
    envs.submit_step(0, "x").result()  # a slot on its own is heard at once
    assert controller.heard == ["a", "b", "c", "a"]
    envs.close(timeout=3)  # gymnasium hands on what it does not know


def test_a_failed_reset_leaves_the_slot_without_an_episode(toys):
    for _ in range(2):  # the first of all, and a later one
        with pytest.raises(OSError, match="no reset"):
            toys.submit_reset(0, options={"boom": True}).result(60)
        with pytest.raises(ResetNeeded, match="slot 0"):
            toys.submit_step(0, "x").result(60)
        toys.reset()
        assert toys.submit_step(0, "x").result(60)[0] == "x 1"


def test_slots_step_side_by_side():
    together = threading.Barrier(3)

    class Meets(Toy):
        def step(self, action):
            together.wait(60)  # passes only when all three are in their step
            return super().step(action)

    envs = ThreadVectorEnv([Meets] * 3)
    envs.reset()
    assert envs.step(("x",) * 3)[0] == ("x 1",) * 3
    envs.close()


def test_a_slow_slot_does_not_hold_up_another():
    go = threading.Event()

    class Waits(Toy):
        def step(self, action):
            assert action != "wait" or go.wait(60)
            return super().step(action)

    envs = ThreadVectorEnv([Waits] * 2)
    envs.reset()
    slow = envs.submit_step(0, "wait")
    with pytest.raises(AlreadyPendingCallError, match="slot 0 has a call in flight"):
        envs.submit_step(0, "x")
    assert [envs.submit_step(1, "x").result(60)[0] for _ in range(5)][-1] == "x 5"
    assert not slow.done()
    with pytest.raises(AlreadyPendingCallError, match=r"slots \[0\]"):
        envs.step(("x", "x"))
    with pytest.raises(AlreadyPendingCallError, match=r"slots \[0\]"):
        envs.reset()
    go.set()
    slow.result(60)
    assert envs.step(("x", "x"))[0] == ("x 2", "x 6")
    envs.close()


def test_close_closes_every_environment_once_and_refuses_more(toys):
    toys.reset()
    toys.close()
    toys.close()
    assert [env.log.count("close") for env in toys.envs] == [1, 1, 1]
    for call in (toys.reset, lambda: toys.step(("x",) * 3), lambda: toys.submit_reset(0)):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            call()


def test_close_closes_the_rest_when_one_fails():
    class Stuck(Toy):
        def close(self):
            super().close()
            if self.name == "a":
                raise OSError("cannot close")

    envs = ThreadVectorEnv([lambda name=name: Stuck(name) for name in "ab"])
    with pytest.raises(OSError, match="cannot close"):
        envs.close()
    assert [env.log for env in envs.envs] == [["close"], ["close"]]


def test_bad_arguments_are_refused(toys):
    for fns, max_workers in (([], None), ([Toy], -1), ([Toy], "2"), ([Toy], 1.5)):
        with pytest.raises(ConfigError, match="must"):
            ThreadVectorEnv(fns, max_workers)
    env = Toy()
    with pytest.raises(ConfigError, match="two slots have the same environment"):
        ThreadVectorEnv([lambda: env, Toy, lambda: gym.Wrapper(env)])
    for slot in (-1, 3):
        with pytest.raises(ConfigError, match=r"slot must be in 0 \.\. 2"):
            toys.submit_step(slot, "x")
    toys.reset()
    for actions in (("x", "x"), "abc"):
        with pytest.raises(ConfigError, match="expected 3 actions"):
            toys.step(actions)
    assert toys.get_attr("steps") == (0, 0, 0)
