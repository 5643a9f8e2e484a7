import copy
import json
import os
import pickle
import warnings
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
from endings import ENDS, K
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit, TransformObservation
from hypothesis import given, settings
from hypothesis import strategies as st

from eh_gym.checked import CheckedEnv
from eh_gym.errors import ConfigError, UserCodeError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, KeyedHorizon
from eh_gym.wrappers import ElasticTimeLimit

pytestmark = pytest.mark.filterwarnings("ignore:the episode was stopped and its info has no 'success'")

ZERO = 0.0  # one object, which is checked once
NUMBERS = [0, 0.0, 1, 1.0, -0.5, Fraction(1, 4), np.float32(1), np.float64(-2), np.int64(3), np.True_]
ON = (ZERO, False, False, {})


def won(reward=1.0, **info):
    return (reward, True, False, {"success": True, **info})


def never(*_):
    return False


def texts(env):
    return TransformObservation(env, str, gym.spaces.Text(99))


def play(env, steps):
    env.reset()
    return [env.step(0) for _ in range(steps)]


def test_a_controller_that_gives_each_episode_its_own_k_is_asked_with_info_and_seed(scripted, journal):
    class Own(type(journal(9))):
        def horizon_for(self, info, seed):
            asked.append((info, seed))
            return len(asked)

    asked, controller = [], Own(9)
    env = ElasticTimeLimit(scripted(ON, ON, ON, reset_info={"task_id": "t"}), controller)
    for k, seed in ((1, 5), (2, None)):
        assert env.reset(seed=seed)[1] == {"task_id": "t", "horizon": k}
        while not env.step(0)[3]:
            pass
    assert asked == [({"task_id": "t"}, 5), ({"task_id": "t"}, None)]
    assert controller.outcomes[1].info == {"task_id": "t", "horizon": 2}
    assert [(outcome.length, outcome.horizon) for outcome in controller.outcomes] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("ended", [won(), (0.0, False, True, {}), ON], ids=["won", "truncated", "by K"])
def test_the_outcome_is_told_once_and_a_step_after_the_end_is_refused(scripted, journal, ended):
    controller, inner = journal(1), scripted(ended)
    env = ElasticTimeLimit(inner, controller)
    play(env, 1)
    for _ in range(2):
        with pytest.raises(gym.error.ResetNeeded, match=r"ended.*reset\(\)"):
            env.step(0)
    assert len(controller.outcomes) == 1
    assert len(inner.actions) == 1
    assert play(env, 1)[0][4]["outcome"]["length"] == 1


def test_a_failed_reset_leaves_no_running_episode(scripted, journal):
    inner = scripted()
    env = ElasticTimeLimit(inner, journal(5))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    play(env, 1)
    inner.fail_on_reset = True
    with pytest.raises(RuntimeError, match="no reset"):
        env.reset()
    inner.reset = lambda **_: (0, None)
    with pytest.raises(UserCodeError, match=r"^reset: the info must be a dict"):
        env.reset()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_an_episode_reset_before_its_end_is_dropped(scripted, journal):
    controller = journal(4)
    env = ElasticTimeLimit(scripted((1.0, False, False, {})), controller)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing here looks like an outer limit
        for steps in (2, 3, 1, 1, 1):
            play(env, steps)
        silent = ElasticTimeLimit(scripted(), controller, record=False)
        for _ in range(3):
            play(silent, 2)
    info = play(env, 4)[-1][4]
    assert len(controller.outcomes) == 1
    assert info["outcome"]["length"] == 4


@pytest.mark.parametrize("task_id", ["train/7", np.int64(4)])
def test_the_environments_info_is_left_as_it_is(scripted, journal, task_id):
    ended, controller = won(episode={"t": 0.5}), journal(5)
    inner = scripted(ended, reset_info={"task_id": task_id})
    before = copy.deepcopy(ended)
    info = play(ElasticTimeLimit(inner, controller), 1)[0][4]
    assert inner.infos[0] is ended[3]
    assert ended == before
    assert (info["episode"], info["outcome"]["length"], info["outcome"]["task_id"]) == ({"t": 0.5}, 1, task_id)
    assert controller.outcomes[0].task_id == str(task_id)


@pytest.mark.parametrize("ruled", [False, True], ids=["key", "rule"])
@pytest.mark.parametrize("keep", [False, True], ids=["zero", "keep"])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.filterwarnings("ignore:the environment's own limit stops episodes before K does")
def test_an_episode_earns_in_all_what_the_table_says(name, keep, ruled, journal):
    def last_step_paid(*last):
        asked.append(last)
        return last[1] > 0

    end, controller, rewards, ended, asked = ENDS[name], journal(K), [], False, []
    success, env = last_step_paid if ruled else "success", CheckedEnv(gym.make("Endings-v0"))
    env = ElasticTimeLimit(env, controller, success=success, zero_reward_on_truncation=not keep)
    env.reset(options={"task_id": name})
    while not ended:
        observation, reward, terminated, truncated, info = env.step("go")
        ended = terminated or truncated
        rewards.append(reward)
    # A rule sees no reward that was made up.
    assert [last[:4] for last in asked] == [(observation, end.own[-1], terminated, truncated)] * ruled
    assert (terminated, truncated) == (
        end.terminated,
        end.stopped or end.truncated,
    )  # learners bootstrap where truncated says so
    assert sum(rewards) == pytest.approx(end.keep if keep else end.zero)
    assert rewards[:-1] == end.own[:-1]
    if keep or end.zero == end.keep:
        assert rewards[-1] == end.own[-1]  # as the environment gave it
    won = end.own[-1] > 0 if ruled else end.success
    told = {"length": len(rewards), "horizon": K, "success": won, "truncated": end.stopped, "task_id": name}
    assert info["outcome"] == told
    assert info["TimeLimit.truncated"] is (end.stopped and len(rewards) == K)
    assert controller.outcomes == [EpisodeOutcome(**told)]


@pytest.mark.parametrize("keep", [False, True], ids=["zero", "keep"])
@pytest.mark.parametrize("k", [5, 2], ids=["before K", "on step K"])
@pytest.mark.parametrize("ends", [(False, True), (True, False)], ids=["truncated", "terminated"])
def test_a_failed_environment_counts_for_nothing_and_pays_no_more_than_a_stop(scripted, journal, k, keep, ends):
    controller = journal(k)
    failed = (0.5, *ends, {"success": True, "environment_error": "worker died"})
    env = ElasticTimeLimit(
        scripted((1.0, False, False, {}), failed), controller, update_every=1, zero_reward_on_truncation=not keep
    )
    first, last = play(env, 2)
    info = last[4]
    assert first[1] + last[1] == (1.5 if keep else 0.0)
    assert controller.outcomes == []
    assert controller.updates == 0
    asked = ElasticTimeLimit(scripted(failed), controller, success=lambda *_: True)
    assert play(asked, 1)[0][4]["outcome"]["success"] is False
    assert info["TimeLimit.truncated"] is False
    assert info["outcome"]["truncated"] is ends[1]
    assert info["outcome"]["success"] is False


@pytest.mark.parametrize(
    "step",
    [
        (0, 0.0, False, {}),
        None,
        (0, ZERO, False, False, None),
        (0, ZERO, None, False, {}),
        (0, ZERO, False, None, {}),
        *((0, wrong, False, False, {}) for wrong in (None, "1", float("nan"), -np.inf, 1e13)),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 9])
def test_what_the_harness_refuses_is_refused_with_its_step(scripted, journal, step, at):
    inner = scripted(*[ON] * 9)
    env = ElasticTimeLimit(inner, journal(9))
    play(env, at - 1)
    inner.step = lambda action: step
    with pytest.raises(UserCodeError, match=f"^step {at}: .* must "):
        env.step(0)


class Own:
    horizon = 2

    def record(self, outcome): ...

    update = state_dict = load_state_dict = record


@pytest.mark.parametrize("kind", [Own, ElasticHorizon])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda env: copy.deepcopy(TimeLimit(env, 9)), None])
def test_a_copied_environment_records_into_its_controller_or_says_that_it_does_not(scripted, monkeypatch, kind, how):
    told = []
    monkeypatch.setattr(ElasticHorizon, "record", lambda self, outcome: told.append(self))
    monkeypatch.setattr(Own, "record", lambda self, outcome: told.append(self))
    controller, made = kind(), lambda controller: ElasticTimeLimit(scripted(won()), controller)
    if how is None:
        monkeypatch.setitem(gym.registry, "Copied-v0", EnvSpec("Copied-v0", made, kwargs={"controller": controller}))
        env = gym.make("Copied-v0", disable_env_checker=True)
    else:
        env = how(made(controller))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        play(env, 1)
    assert (told == [controller]) is not any("__deepcopy__" in str(warning.message) for warning in warned)
    assert told == [controller] or (kind, how) == (Own, None)


def test_an_episode_that_ends_without_a_verdict_is_an_error_that_lists_the_keys(scripted, journal):
    env = ElasticTimeLimit(scripted((1.0, True, False, {"won": True, "score": 3})), journal(5))
    with pytest.raises(ConfigError, match=r"'success'.*\['score', 'won'\].*success=KEY"):
        play(env, 1)


@pytest.mark.parametrize(
    ("make", "last", "warned"),
    [
        (lambda env: env, {}, [1]),
        (lambda env: env, {"success": False}, []),
        (texts, {}, [8]),  # by the contract of texts, the last step alone says it
    ],
    ids=["never says it", "says it", "texts"],
)
def test_a_warning_says_once_that_stopped_episodes_may_lack_a_success(scripted, journal, make, last, warned):
    env = ElasticTimeLimit(make(scripted((0.0, False, False, last))), journal(1))
    told = []
    for episode in range(1, 20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            play(env, 1)
        told += [episode for warning in caught if "success=KEY" in str(warning.message)]
    assert told == warned


def test_no_warning_where_an_episode_has_said_it_or_no_controller_hears_of_it(scripted, journal):
    env = ElasticTimeLimit(scripted(won()), journal(5, 1))
    play(env, 1)
    env.controller.update()
    env.env.script = ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert play(env, 1)[0][4]["outcome"]["success"] is False
        silent = journal(1)
        play(ElasticTimeLimit(scripted(), silent, record=False), 1)
    assert silent.outcomes == []


@pytest.mark.parametrize("verdict", ["False", None, float("nan"), 2, np.array([True, False])])
def test_a_verdict_that_is_no_bool_is_refused(scripted, journal, verdict):
    for success in ("success", lambda *_: verdict):
        env = ElasticTimeLimit(scripted(won(success=verdict)), journal(5), success=success)
        with pytest.raises(ConfigError, match="True or False"):
            play(env, 1)


@pytest.mark.parametrize("kind", [bool, int, np.bool_, np.float32, lambda verdict: np.array([verdict])])
def test_the_numbers_that_environments_report_as_success_are_read(scripted, journal, kind):
    for verdict in (True, False):
        last = (np.float32(0.1), np.True_, np.False_, {"is_success": kind(verdict)})
        for success in ("is_success", lambda *step: step[4]["is_success"]):
            info = play(ElasticTimeLimit(scripted(last), journal(5), success=success), 1)[0][4]
            episode = json.loads(json.dumps(info["outcome"]))
            assert (episode["success"], episode["truncated"]) == (verdict, False)


def test_the_infos_of_arrays_have_numpy_numbers_and_those_of_texts_plain_ones(scripted, journal):
    # TorchRL's auto_register_info_dict takes numpy's scalars alone; text agents' logs are JSON, which has none.
    env = ElasticTimeLimit(scripted(), journal(2))
    for info in (env.reset()[1], env.step(0)[4], env.step(0)[4]):
        assert type(info["horizon"]) is np.int64
        assert info["horizon"] == 2
    env = ElasticTimeLimit(gym.make("EH-Cabinet-v0"), FixedHorizon(2))
    for info in (env.reset(seed=0)[1], env.step("list()")[4], env.step("list()")[4]):
        assert json.loads(json.dumps(info)) == info
        assert info["horizon"] == 2


@pytest.mark.parametrize("make", [lambda: ElasticHorizon(k0=5), lambda: KeyedHorizon(ElasticHorizon, "task_id")])
def test_a_copy_in_another_process_warns_once_that_nobody_hears_it(scripted, monkeypatch, make):
    controller = pickle.loads(pickle.dumps(make()))
    for pid, warned in ((os.getpid(), 0), (-1, 1)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)  # -1: as a forked or spawned child sees it
        env = ElasticTimeLimit(scripted(won(), reset_info={"task_id": "t"}), controller)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            play(env, 1)
            play(env, 1)
        assert ["SharedHorizon" in str(warning.message) for warning in told] == [True] * warned


def test_update_every_counts_this_wrappers_recorded_episodes(scripted, journal):
    controller = journal(1)
    env, other = (ElasticTimeLimit(scripted(), controller, update_every=n) for n in (3, None))
    updates = []
    for _ in range(7):
        play(env, 1)
        play(other, 1)
        updates.append(controller.updates)
    assert updates == [0, 0, 1, 1, 1, 2, 2]
    assert len(controller.outcomes) == 14


@pytest.mark.parametrize(
    "arguments",
    [
        *({"controller": controller} for controller in (15, FixedHorizon)),
        *({"success": success} for success in (None, lambda info: True)),
        *({"record": flag} for flag in ("no", 1, None)),
        {"zero_reward_on_truncation": "no"},
        *({"update_every": n} for n in (0, 1.5, float("nan"), "64", True)),
        {"update_every": 2, "record": False},
    ],
)
def test_wrong_arguments_are_refused_by_their_name(scripted, arguments):
    with pytest.raises(ConfigError, match=f"^{next(iter(arguments))} "):
        ElasticTimeLimit(scripted(), **{"controller": FixedHorizon(3), **arguments})


@pytest.mark.parametrize("k", [0, -1, 2.5, float("nan"), float("inf"), None, "3"])
def test_a_controller_whose_k_is_no_number_of_steps_is_refused_at_the_reset(scripted, journal, k):
    each = journal(3)
    each.horizon_for = lambda info, seed: k
    for controller, name in ((journal(k), "Journal"), (each, r"horizon_for\(\)")):
        env = ElasticTimeLimit(scripted(), controller)
        with pytest.raises(ConfigError, match=f"{name}.*got {k!r}"):
            env.reset()
        with pytest.raises(gym.error.ResetNeeded):
            env.step(0)


@settings(max_examples=60, deadline=None)
@given(
    horizons=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    ends=st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["won", "lost", "truncated"])), min_size=1, max_size=8),
    rewards=st.lists(st.sampled_from(NUMBERS), min_size=7, max_size=7),
)
@pytest.mark.filterwarnings("ignore:the environment's own limit stops episodes before K does")
def test_it_equals_a_slow_implementation(scripted, journal, horizons, ends, rewards):
    controller, inner = journal(*horizons), scripted()
    env = ElasticTimeLimit(inner, controller)
    for end, how in ends:
        k, cut = controller.horizon, how == "truncated"
        last = (not cut, cut, {"success": how == "won", "TimeLimit.truncated": cut})
        inner.script = [(r, *(last if t == end else (False, False, {}))) for t, r in enumerate(rewards, start=1)]
        length, over = min(end, k), end <= k and not cut
        env.reset()
        controller.update()  # a running episode keeps its K
        steps, total = [env.step(0) for _ in range(length)], sum(map(float, rewards[:length]))
        assert env.horizon == k
        assert [s[2] or s[3] for s in steps] == [False] * (length - 1) + [True]
        assert sum(float(s[1]) for s in steps) == (total if over else min(total, 0))
        assert steps[-1][4]["TimeLimit.truncated"] is not over
        assert controller.outcomes[-1] == EpisodeOutcome(length, k, over and how == "won", not over)
        assert EpisodeOutcome(**steps[-1][4]["outcome"]) == controller.outcomes[-1]
    assert len(controller.outcomes) == len(ends)


@pytest.mark.parametrize(
    "make", [lambda: gym.make("Pendulum-v1"), lambda: gym.make("eh_gym:EH-Cabinet-v0")], ids=["numbers", "text"]
)
@pytest.mark.filterwarnings("ignore:.*WARN.*:UserWarning")
def test_the_environment_checker_passes(make):
    env = ElasticTimeLimit(make(), FixedHorizon(6), success=never)
    check_env(env, skip_render_check=True)


def test_its_spec_makes_it_again_around_the_same_controller_and_says_that_json_cannot_hold_it():
    controller = FixedHorizon(3)
    env = ElasticTimeLimit(gym.make("EH-Cabinet-v0"), controller)
    for outer in (env, TimeLimit(env, 9)):
        assert gym.make(outer.spec).get_wrapper_attr("controller") is controller
        with pytest.raises(ConfigError, match=r"env.unwrapped.spec.to_json\(\)"):
            outer.spec.to_json()
    assert EnvSpec.from_json(env.unwrapped.spec.to_json()).id == "EH-Cabinet-v0"
