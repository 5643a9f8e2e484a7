"""What every EH-* environment promises, checked on each; a backend that is not installed skips its own."""

import copy
import pickle
import warnings
from collections.abc import Sequence

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import PassiveEnvChecker

from eh_gym import FixedHorizon, make_vec
from eh_gym.errors import ConfigError, MissingBackendError
from eh_gym.registration import ENTRY_POINTS

# What makes an environment small and quick enough to test, where that is not split="dev".
ARGUMENTS = {"EH-AppWorld-v0": {"split": "mini", "step_timeout_s": 2.0}}
SPLITS = ("train", "dev", "test")
LONGEST = 200  # steps; an expert needs fewer


@pytest.fixture(scope="module", params=ENTRY_POINTS)
def env_id(request):
    try:
        env = gym.make(request.param, **_arguments(request.param))
        env.reset(seed=0)
        env.close()
    except MissingBackendError as missing:
        pytest.skip(str(missing))
    return request.param


def _arguments(env_id):
    return ARGUMENTS.get(env_id, {"split": "dev"})


@pytest.fixture
def make(env_id):
    """Builds the environment on its small split, unless told another; closes it in the end."""
    made = []

    def build(**kwargs):
        made.append(gym.make(env_id, **{**_arguments(env_id), **kwargs}))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.fixture
def make_slots(env_id):
    """Builds slots of the environment on its small split; closes them in the end."""
    made = []

    def build(count, *args, **kwargs):
        made.append(make_vec(env_id, count, *args, **{**_arguments(env_id), **kwargs}))
        return made[-1]

    yield build
    for envs in made:
        envs.close()


def _play(env, choose, limit=LONGEST):
    """Steps with ``choose(step)`` until the end; all step results."""
    results = []
    for step in range(limit):
        results.append(env.step(choose(step)))
        if results[-1][2] or results[-1][3]:
            break
    return results


def _assert_step_keeps_the_contract(env, result):
    observation, reward, terminated, truncated, info = result
    assert type(observation) is str
    assert observation in env.observation_space
    assert type(reward) is float
    assert (type(terminated), type(truncated), type(info)) == (bool, bool, dict)
    assert "environment_error" not in info
    assert not truncated
    if terminated:
        assert type(info["success"]) is bool
        assert reward == float(info["success"])
    else:
        assert reward == 0.0
        assert "success" not in info


def test_passes_gymnasiums_checker_without_a_warning(make):
    env = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_passes_the_passive_checker_over_an_episode(make):
    env = make()
    assert isinstance(env.env, PassiveEnvChecker)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(seed=1)
        assert _play(env, lambda _: env.unwrapped.expert())[-1][2]


def test_has_no_step_limit_of_its_own(env_id):
    assert gym.spec(env_id).max_episode_steps is None


def test_reset_says_what_the_task_is(make):
    env = make()
    observation, info = env.reset(seed=0)
    assert type(observation) is str
    assert observation in env.observation_space
    for key in ("task_id", "system_prompt", "instruction"):
        assert type(info[key]) is str, key
        assert info[key], key
    assert info["task_id"] in env.unwrapped.task_ids


def test_the_seed_alone_chooses_the_task(make):
    one, other = make(), make()
    first = [one.reset(seed=seed) for seed in range(6)]
    assert [other.reset(seed=seed) for seed in range(6)] == first
    assert len({info["task_id"] for _, info in first}) > 1
    one.reset(seed=3)
    other.reset(seed=3)
    assert [one.reset() for _ in range(4)] == [other.reset() for _ in range(4)]


def test_the_task_id_wins_over_the_seed(make):
    env = make()
    ids = env.unwrapped.task_ids
    for task_id in (ids[0], ids[len(ids) // 2], ids[-1]):
        seen = [env.reset(seed=seed, options={"task_id": task_id}) for seed in (1, 2)]
        assert seen[0] == seen[1]
        assert seen[0][1]["task_id"] == task_id


@pytest.mark.parametrize("task_id", ["no-such-task", "", "train-"])
def test_an_unknown_task_is_refused(make, task_id):
    env = make()
    with pytest.raises(ConfigError):
        env.reset(seed=0, options={"task_id": task_id})
    assert env.reset(seed=0)[1]["task_id"] in env.unwrapped.task_ids  # and the environment is still of use


def test_an_unknown_split_or_argument_is_refused(make):
    with pytest.raises(ConfigError, match="split"):
        make(split="nope")
    with pytest.raises(TypeError, match="spilt"):
        make(spilt="dev")


def test_the_splits_share_no_task_and_all_has_each(env_id, make):
    if env_id == "EH-AppWorld-v0":
        pytest.skip("its splits are AppWorld's own, and have no union; tests/envs/appworld/test_data.py reads them")
    ids = {split: make(split=split).unwrapped.task_ids for split in (*SPLITS, "all")}
    assert len(ids["all"]) == sum(len(ids[split]) for split in SPLITS)
    for split in SPLITS:
        assert isinstance(ids[split], Sequence)
        sample = {ids[split][i] for i in range(0, len(ids[split]), max(1, len(ids[split]) // 100))}
        assert sample
        assert all(type(task_id) is str for task_id in sample)
        assert all(task_id in ids["all"] for task_id in sample)
        assert not any(task_id in ids[other] for other in SPLITS if other != split for task_id in sample)


def test_infos_are_fresh(make):
    env = make()
    _, info = env.reset(seed=2)
    kept = copy.deepcopy(info)
    _deface(info)
    assert env.reset(seed=2)[1] == kept
    first = env.step("???")[4]
    again = copy.deepcopy(first)
    _deface(first)
    env.reset(seed=2)
    assert env.step("???")[4] == again


def _deface(info):
    for value in info.values():
        if isinstance(value, (dict, list)):
            value.clear()
    info.clear()
    info["task_id"] = "defaced"


def test_the_expert_solves_its_tasks(make):
    env = make()
    ids = env.unwrapped.task_ids
    for task_id in ids[:: max(1, len(ids) // 12)]:
        _, info = env.reset(options={"task_id": task_id})
        results = _play(env, lambda _: env.unwrapped.expert())
        for result in results:
            _assert_step_keeps_the_contract(env, result)
        assert results[-1][1:3] == (1.0, True), f"{task_id}: {results[-1]}"
        assert results[-1][4]["success"] is True
        assert len(results) == info.get("optimal_steps", len(results))


def test_the_same_actions_give_the_same_episode(make):
    one, other = make(), make()
    rng = np.random.default_rng(5)
    for seed in range(3):
        assert one.reset(seed=seed) == other.reset(seed=seed)
        actions = []

        def choose(_, actions=actions):
            wasteful = rng.random() < 0.4
            actions.append(one.unwrapped.random_action(rng) if wasteful else one.unwrapped.expert())
            return actions[-1]

        assert _play(one, choose) == _play(other, actions.__getitem__, limit=len(actions))


def test_random_actions_are_harmless_texts(make):
    env = make()
    rng = np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        for result in _play(env, lambda _: _text(env, env.unwrapped.random_action(rng)), limit=15):
            _assert_step_keeps_the_contract(env, result)


def _text(env, action):
    assert type(action) is str
    assert action in env.action_space
    return action


MALFORMED = [
    *(
        "",
        " ",
        "\n\n",
        "None",
        "null",
        "nan",
        "[]",
        "{}",
        "()",
        "[[[[",
        "]]]]",
        "f(",
        "f(a=",
        "f(a=1",
        "[f(a=1)",
        "f(a=1))",
    ),
    *(
        "\0",
        "\x1b[2J\x07\x08\x7f",
        "\r\n\t\v\f",
        "\ud800",
        "\ufeff",
        "\u202etxet",
        "naïve 🧭 中文",
        "ｏｐｅｎ（ａ）",
        "🤷" * 50,
    ),
    *("x" * 100_000, "(" * 100_000, "[" * 100_000, "a(" * 50_000, "9" * 100_000, "-" * 5_000 + "1", "\n" * 100_000),
    *("<tool_call>", "<tool_call>{</tool_call>", '<tool_call>{"name": 3}</tool_call>', "<tool_call></tool_call>" * 500),
    *(
        "__import__('os').system('true')",
        "[exit()]",
        "[eval('1')]",
        "[f(**{})]",
        "[f(*x)]",
        "[f(lambda: 0)]",
        "[9**9**9]",
    ),
    *(
        "%s %n",
        "'; DROP TABLE tasks; --",
        "${HOME}",
        "{0.__class__}",
        '{"a": 1e999}',
        "\\",
        "'",
        '"',
        '"""',
        "#",
        "f(a=b'x')",
    ),
]


def test_malformed_actions_are_answered_and_never_raise(make):
    env = make()
    env.reset(seed=0)
    for action in MALFORMED:
        result = env.unwrapped.step(action)
        _assert_step_keeps_the_contract(env, result)
        if result[2]:
            assert result[4]["success"] is False, repr(action[:80])
            env.reset()


def test_damaged_expert_actions_never_raise(make):
    env = make()
    rng = np.random.default_rng(0)
    alphabet = "()[]{}'\"\\,=:;.<>/ \n\0é🧭09azAZ_"
    for seed in range(4):
        env.reset(seed=seed)
        for _ in range(40):
            text = env.unwrapped.expert()
            for _ in range(rng.integers(1, 4)):
                place = int(rng.integers(len(text) + 1))
                character = alphabet[rng.integers(len(alphabet))]
                text = [text[:place], text[:place] + character + text[place:], text[place:], text * 2][rng.integers(4)]
            result = env.unwrapped.step(text)
            _assert_step_keeps_the_contract(env, result)
            if result[2]:
                env.reset()


def test_the_spec_survives_pickling(make):
    env = make()
    for spec in (pickle.loads(pickle.dumps(env.spec)), cloudpickle.loads(cloudpickle.dumps(env.spec))):
        rebuilt = gym.make(spec)
        assert rebuilt.unwrapped.task_ids[0] == env.unwrapped.task_ids[0]
        assert rebuilt.reset(seed=4) == env.reset(seed=4)
        rebuilt.close()


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_the_environment_survives_pickling(make, pickler):
    env = make()
    twin = pickler.loads(pickler.dumps(env))
    assert twin.reset(seed=4) == env.reset(seed=4)
    assert twin.step(twin.unwrapped.expert()) == env.step(env.unwrapped.expert())
    twin.close()


def test_close_may_come_early_and_twice(make):
    never_reset, used = make(), make()
    never_reset.close()
    used.reset(seed=0)
    used.close()
    used.close()


@pytest.mark.parametrize("max_workers", [0, 2])
def test_one_slot_is_the_plain_environment(make, make_slots, max_workers):
    plain = make()
    envs = make_slots(1, FixedHorizon(LONGEST), max_workers=max_workers)
    observation, info = plain.reset(seed=7)
    observations, infos = envs.reset(seed=7)
    assert observations == (observation,)
    assert infos["task_id"].tolist() == [info["task_id"]]
    steps, terminated = 0, False
    while not terminated:
        steps += 1
        action = plain.unwrapped.expert()
        observation, reward, terminated, truncated, _ = plain.step(action)
        observations, rewards, terminations, truncations, infos = envs.step((action,))
        assert observations == (observation,)
        assert [*rewards, *terminations, *truncations] == [reward, terminated, truncated]
    assert infos["episode"]["length"].tolist() == [steps]
    assert infos["episode"]["success"].tolist() == infos["success"].tolist() == [True]


def test_a_masked_reset_changes_its_own_slots_only(make, make_slots):
    plain = make()
    ids = plain.unwrapped.task_ids[:3]
    envs = make_slots(3)
    envs.reset(options={"task_ids": ids})
    before = envs.step(envs.call("expert"))[0]
    mask = np.array([False, True, False])
    observations, infos = envs.reset(options={"reset_mask": mask, "task_ids": [None, ids[0], None]})
    assert observations[0::2] == before[0::2]
    assert observations[1] == plain.reset(options={"task_id": ids[0]})[0]
    assert infos["task_id"].tolist() == [None, ids[0], None]
    for slot, skipped in ((0, 1), (1, 0), (2, 1)):  # each goes on exactly where it should be
        plain.reset(options={"task_id": ids[0] if slot == 1 else ids[slot]})
        for _ in range(skipped):
            plain.step(plain.unwrapped.expert())
        action = plain.unwrapped.expert()
        assert envs.submit_step(slot, action).result(60)[:4] == plain.step(action)[:4]


def test_every_slot_may_run_its_own_task_to_its_end(make_slots):
    envs = make_slots(4, FixedHorizon(LONGEST))
    done = {}
    envs.reset(seed=0)
    for slot in range(4):
        while slot not in done:
            action = envs.envs[slot].unwrapped.expert()
            *_, terminated, truncated, info = envs.submit_step(slot, action).result(60)
            if terminated or truncated:
                done[slot] = info["episode"]["success"]
    assert done == dict.fromkeys(range(4), True)
