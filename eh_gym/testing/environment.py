"""Tests to inherit for a text environment. They can't tell whether its tasks and verdicts are right."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from eh_gym.checked import CheckedEnv, said_by
from eh_gym.errors import ConfigError
from eh_gym.spaces import UnicodeText
from eh_gym.testing.malformed import MALFORMED
from eh_gym.vector import ThreadVectorEnv

TextEnv = gym.Env[str, str]

_STEP_S = 60.0


class _WatchedEnv(CheckedEnv):
    def step(self, action: Any) -> Any:
        answer = super().step(action)
        observation, _, _, truncated, info = answer
        assert "environment_error" not in info, (
            f"the environment failed, as its environment_error rightly says: {info['environment_error']}; a run would "
            "play this episode again, but these tests need one that does not fail"
        )
        _check_text(observation, self.observation_space)
        assert not truncated, (
            "truncated is for ElasticTimeLimit to set; an environment has no limit of steps of its own"
        )
        return answer


class TextEnvContract:
    """Tests of any text environment that the harness may play. Inherit from this class and define `make`.

    docs/extend/environment.md lists what they ask for.

    Attributes:
        malformed: Texts that are not valid actions and never succeed. Add those of your own format.
        unknown_task_ids: Ids of tasks that do not exist.
        longest: The most steps that the expert takes.
        success_threshold: The least sum of rewards that is a success, without a verdict.
    """

    malformed: ClassVar[Sequence[str]] = MALFORMED
    unknown_task_ids: ClassVar[Sequence[str]] = ("no-such-task", "", "\0")
    longest: ClassVar[int] = 200
    success_threshold: float = 1.0

    _made: tuple[Any, ...] = ()

    def make(self) -> TextEnv:
        """A new environment with few or quick tasks, by ``gym.make`` with the same arguments at every call."""
        raise NotImplementedError(
            "say in make() how your environment is made: return gym.make('MyEnv-v0', split='dev')"
        )

    def make_slots(self, count: int) -> ThreadVectorEnv:
        """`count` environments in slots."""
        return ThreadVectorEnv([self._watched] * count)

    def teardown_method(self) -> None:
        """Closes the test's environments."""
        for env in self._made:
            env.close()
        self._made = ()

    def new(self) -> TextEnv:
        """A new environment whose answers are checked; closed when the test ends."""
        env: TextEnv = self._closed_later(self._watched())
        return env

    def _watched(self) -> TextEnv:
        return _WatchedEnv(self.make(), self.success_threshold)

    def _closed_later(self, env: Any) -> Any:
        self._made = (*self._made, env)
        return env

    def test_has_no_step_limit_of_its_own(self) -> None:
        spec = self.new().spec
        limit = None if spec is None else spec.max_episode_steps
        assert limit is None, f"max_episode_steps is {limit}; register the environment without it"

    def test_reset_says_what_the_task_is(self) -> None:
        env = self.new()
        observation, info = env.reset(seed=0)
        _check_text(observation, env.observation_space)
        for key in ("task_id", "system_prompt", "instruction"):
            value = info.get(key)
            is_text = isinstance(value, str) and bool(value)
            assert is_text, f"info[{key!r}] must be a text, got {value!r}; return it in the info of reset"
        assert info["task_id"] in _ids(env), f"{info['task_id']!r} is not in env.unwrapped.task_ids"

    def test_the_seed_alone_chooses_the_task(self) -> None:
        one, other = self.new(), self.new()
        first = [one.reset(seed=seed) for seed in range(6)]
        again = [other.reset(seed=seed) for seed in range(6)]
        assert again == first, f"the same seeds gave {_differ(first, again)}; draw the task with self.np_random"
        assert len({info["task_id"] for _, info in first}) > 1, f"6 seeds drew one task, {first[0][1]['task_id']!r}"
        one.reset(seed=3)
        other.reset(seed=3)
        first, again = [one.reset() for _ in range(4)], [other.reset() for _ in range(4)]
        assert again == first, f"after the same seed, resets without one gave {_differ(first, again)}"

    def test_the_task_id_wins_over_the_seed(self) -> None:
        env = self.new()
        ids = _ids(env)
        for task_id in (ids[0], ids[len(ids) // 2], ids[-1]):
            first, again = (env.reset(seed=seed, options={"task_id": task_id}) for seed in (1, 2))
            assert again == first, f"task {task_id!r} with two seeds gave {_differ([first], [again])}"

    def test_an_unknown_task_is_refused(self) -> None:
        for task_id in self.unknown_task_ids:
            env = self.new()
            how = f"the task id {task_id!r}; raise eh_gym.errors.ConfigError for an unknown task"
            try:
                env.unwrapped.reset(seed=0, options={"task_id": task_id})
            except ConfigError:
                pass
            except Exception as error:
                raise AssertionError(f"reset raised {said_by(error)} for {how}") from error
            else:
                raise AssertionError(f"reset took {how}")
            assert env.reset(seed=0)[1]["task_id"] in _ids(env), "after a refused reset it plays no task of its own"

    def test_malformed_actions_are_answered_and_never_raise(self) -> None:
        """Malformed actions are no success."""
        env = self.new()
        env.reset(seed=0)
        for action in self.malformed:
            result = env.step(action)
            if result[2]:
                assert not result[4]["success"], f"{action[:80]!r} was a success"
                env.reset()

    def test_infos_are_fresh(self) -> None:
        env = self.new()
        _, info = env.reset(seed=2)
        kept = copy.deepcopy(info)
        _deface(info)
        again = env.reset(seed=2)[1]
        assert again == kept, "changing the info of a reset changed that of the next; return a new dict each time"
        first = env.step("???")[4]
        kept = copy.deepcopy(first)
        _deface(first)
        env.reset(seed=2)
        assert env.step("???")[4] == kept, "changing the info of a step changed another's; return a new dict each time"

    def test_the_spec_survives_pickling(self) -> None:
        """Other processes need the spec pickled."""
        env = self.new()
        assert env.spec is not None, "the environment has no spec; register it, and make it by gym.make"
        rebuilt = self._closed_later(gym.make(pickle.loads(pickle.dumps(env.spec))))
        assert _ids(rebuilt)[0] == _ids(env)[0], "the environment of the pickled spec has other tasks"
        assert rebuilt.reset(seed=4) == env.reset(seed=4), "the environment of the pickled spec starts otherwise"

    def test_close_may_come_early_and_twice(self) -> None:
        never_reset, used = self.new(), self.new()
        never_reset.close()
        used.reset(seed=0)
        used.close()
        used.close()

    def test_passes_gymnasiums_checker_without_a_warning(self) -> None:
        env = self.new()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)


class ExpertEnvContract(TextEnvContract):
    """Tests of a text environment that knows its solutions, as `--model tiny` and the warm start need it.

    ``env.unwrapped.expert()`` returns the next action of a perfect agent, and ``env.unwrapped.random_action(rng)`` a
    harmless action. If ``reset`` gives ``info["optimal_steps"]``, the expert takes as many steps.
    """

    def play(self, env: TextEnv, choose: Callable[[int], str], limit: int | None = None) -> list[Any]:
        """Steps with ``choose(step)`` until the end or `limit`. Returns the results."""
        results: list[Any] = []
        for step in range(self.longest if limit is None else limit):
            results.append(env.step(choose(step)))
            if results[-1][2]:
                break
        return results

    def test_the_expert_solves_its_tasks(self) -> None:
        env = self.new()
        ids = _ids(env)
        for task_id in ids[:: max(1, len(ids) // 12)]:
            _, info = env.reset(options={"task_id": task_id})
            results = self.play(env, lambda _: _expert(env))
            solved = results[-1][2] and results[-1][4]["success"]
            assert solved, f"the expert failed at {task_id!r}; its last step gave {results[-1]}"
            steps = info.get("optimal_steps", len(results))
            assert len(results) == steps, f"{task_id!r} took {len(results)} steps; its optimal_steps are {steps}"

    def test_the_same_actions_give_the_same_episode(self) -> None:
        one, other = self.new(), self.new()
        rng = np.random.default_rng(5)
        for seed in range(3):
            assert one.reset(seed=seed) == other.reset(seed=seed), f"seed {seed} gave two starts"
            actions: list[str] = []

            def choose(_: int, actions: list[str] = actions) -> str:
                actions.append(_base(one).random_action(rng) if rng.random() < 0.4 else _expert(one))
                _check_text(actions[-1], one.action_space)
                return actions[-1]

            first = self.play(one, choose)
            again = self.play(other, actions.__getitem__, limit=len(actions))
            assert again == first, f"the same actions gave {_differ(first, again)}"

    def test_damaged_expert_actions_never_raise(self) -> None:
        """Nearly right actions are the most likely malformed ones."""
        env = self.new()
        rng = np.random.default_rng(0)
        alphabet = "()[]{}'\"\\,=:;.<>/ \n\0é🧭09azAZ_"
        for seed in range(4):
            env.reset(seed=seed)
            for _ in range(40):
                text = _expert(env)
                for _ in range(rng.integers(1, 4)):
                    place = int(rng.integers(len(text) + 1))
                    character = alphabet[rng.integers(len(alphabet))]
                    damaged = text[:place], text[:place] + character + text[place:], text[place:], text * 2
                    text = damaged[rng.integers(4)]
                if env.step(text)[2]:
                    env.reset()

    def test_the_environment_survives_pickling(self) -> None:
        env = self.new()
        twin = self._closed_later(pickle.loads(pickle.dumps(env)))
        assert twin.reset(seed=4) == env.reset(seed=4), "the pickled environment starts otherwise"
        first, again = env.step(_expert(env)), twin.step(_expert(twin))
        assert again == first, f"the pickled environment answered {again}, expected {first}"

    def test_a_masked_reset_changes_its_own_slots_only(self) -> None:
        plain = self.new()
        ids = _ids(plain)[:3]
        assert len(ids) == 3, f"three tasks are needed to tell slots apart, got {list(ids)}"
        envs = self._closed_later(self.make_slots(3))
        envs.reset(options={"task_ids": ids})
        before = envs.step(envs.call("expert"))[0]
        mask = np.array([False, True, False])
        observations, infos = envs.reset(options={"reset_mask": mask, "task_ids": [None, ids[0], None]})
        assert observations[0::2] == before[0::2], "the reset of slot 1 changed slots 0 and 2"
        first = plain.reset(options={"task_id": ids[0]})[0]
        assert observations[1] == first, f"slot 1 started with {observations[1]!r}, expected {first!r}"
        assert infos["task_id"].tolist() == [None, ids[0], None], f"the slots play {infos['task_id'].tolist()}"
        for slot, skipped in ((0, 1), (1, 0), (2, 1)):  # each continues exactly where it was
            plain.reset(options={"task_id": ids[0] if slot == 1 else ids[slot]})
            if any(plain.step(_expert(plain))[2] for _ in range(skipped)):
                continue  # the task takes one step
            action = _expert(plain)
            got, expected = envs.submit_step(slot, action).result(_STEP_S)[:4], plain.step(action)[:4]
            assert got == expected, f"slot {slot} went on with {got}, expected {expected}"


def _base(env: TextEnv) -> Any:
    return env.unwrapped


def _ids(env: TextEnv) -> Sequence[str]:
    ids: Sequence[str] = getattr(env.unwrapped, "task_ids", ())
    assert ids, "there are no task_ids; add a sequence of the ids that reset(options={'task_id': …}) takes"
    return ids


def _expert(env: TextEnv) -> str:
    return str(_base(env).expert())


def _check_text(text: str, space: Any) -> None:
    hint = "" if isinstance(space, UnicodeText) else "; make the space an eh_gym.UnicodeText(…), which has every text"
    assert text in space, f"{text[:200]!r} is not in {space}{hint}"


def _differ(first: Sequence[Any], again: Sequence[Any]) -> str:
    pairs = [(i, a, b) for i, (a, b) in enumerate(zip(first, again, strict=False)) if a != b]
    i, a, b = pairs[0] if pairs else (min(len(first), len(again)), "its end", "more")
    return f"at {i} first {a!r}, then {b!r}"


def _deface(info: dict[str, Any]) -> None:
    for value in info.values():
        if isinstance(value, (dict, list)):
            value.clear()
    info.clear()
    info["task_id"] = "defaced"
