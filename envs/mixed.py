"""Several environments as one, so that one run trains on all of them."""

import bisect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Text

from eh_gym.errors import ConfigError
from eh_gym.spaces import UnicodeText
from envs.ids import LazyIds, task_ids_of
from envs.make import make_environment
from envs.options import named_task

Info = dict[str, Any]


def read_environments(text: str) -> dict[str, int]:
    """Reads the text of `--env`: ids with commas between, each with ``:WEIGHT`` if its weight is not 1.

    >>> read_environments("EH-Cabinet-v0:2,my_package:Number-v0")
    {'EH-Cabinet-v0': 2, 'my_package:Number-v0': 1}
    """
    weights: dict[str, int] = {}
    for one in text.split(","):
        name, _, weight = one.strip().rpartition(":")
        if not re.fullmatch(r"[-+.\d]+", weight):  # the colon, if there is one, belongs to the id: MODULE:ID
            name, weight = one.strip(), "1"
        if not name or name in weights or not weight.isdecimal() or int(weight) < 1:
            raise ConfigError(
                f"--env must be an id, or several different ones with whole weights >= 1 such as "
                f"EH-Cabinet-v0:2,EH-CabinetLocked-v0:1, got {text!r}"
            )
        weights[name] = int(weight)
    return weights


def mixed(envs: Mapping[str, str | EnvSpec]) -> EnvSpec:
    return EnvSpec(
        "EH-Mixed-v0",
        entry_point="envs.mixed:MixedEnv",
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"envs": dict(envs)},
    )


class MixedEnv(gym.Env[str, str]):
    """Plays each episode in one of several text environments.

    The task ``train-000001`` of EH-Cabinet-v0 is ``EH-Cabinet-v0/train-000001`` here. A reset's info has this id, and
    the environment's name as ``info["environment"]``.

    Args:
        envs: Name -> an id or a spec that `make_environment` takes.
        **arguments: For ``gym.make``. An argument with the name of one of `envs` is a dict of arguments for that
            environment alone.

    Attributes:
        parts: Name -> the environment's tasks under their ids here.
        task_ids: The tasks of all environments: the first of each, then the second of each, and so on.

    Raises:
        ConfigError: There is no environment, an environment does not use texts or has no ``task_ids``, or an argument
            is wrong.

    Example:
        >>> names = ("EH-Cabinet-v0", "EH-CabinetLocked-v0")
        >>> env = MixedEnv(dict(zip(names, names)), split="dev")
        >>> env.task_ids[0], env.task_ids[1]
        ('EH-Cabinet-v0/dev-000000', 'EH-CabinetLocked-v0/dev-000000')
        >>> env.reset(options={"task_id": "EH-CabinetLocked-v0/dev-000007"})[1]["environment"], env.step("unlock()")[0]
        ('EH-CabinetLocked-v0', 'nothing')
    """

    def __init__(self, envs: Mapping[str, str | EnvSpec], **arguments: Any) -> None:
        if not envs:
            raise ConfigError("envs must have at least one environment, got none")
        of_one = {name: arguments.pop(name, {}) for name in envs}
        for name, given in of_one.items():
            if not isinstance(given, Mapping) or "split" in given:
                raise ConfigError(
                    f"the arguments of {name} must be an object without split, which is the same for all environments, "
                    f"got {given!r}"
                )
        self.envs: dict[str, gym.Env[str, str]] = {}
        try:
            for name, kind in envs.items():
                self.envs[name] = make_environment(kind, {**arguments, **of_one[name]})
            spaces = [space for env in self.envs.values() for space in (env.observation_space, env.action_space)]
            if not all(isinstance(space, Text) for space in spaces):
                raise ConfigError(f"only environments of texts can be mixed, got {', '.join(envs)}")
            longest = max(space.max_length for space in spaces if isinstance(space, Text))
            self.observation_space = self.action_space = UnicodeText(longest)
            self.parts: dict[str, Sequence[str]] = {
                name: _Prefixed(f"{name}/", _tasks(name, env)) for name, env in self.envs.items()
            }
        except BaseException:
            self.close()
            raise
        self.task_ids: Sequence[str] = _InTurn(list(self.parts.values()))
        self._now: gym.Env[str, str] | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        """Starts an episode."""
        super().reset(seed=seed)
        task_id = named_task(options)
        if task_id is None:
            part = list(self.parts.values())[int(self.np_random.integers(len(self.parts)))]
            task_id = part[int(self.np_random.integers(len(part)))]
        fitting = [name for name in self.envs if str(task_id).startswith(f"{name}/")]
        name = max(fitting, key=len, default=None)  # a name may itself be the beginning of another
        if name is None:
            raise ConfigError(
                f"expected a task's id that begins with one of {', '.join(f'{name}/' for name in self.envs)}, got "
                f"{task_id!r}; env.unwrapped.task_ids lists them"
            )
        self._now = None  # if the reset fails, no episode is running
        env = self.envs[name]
        if seed is None:  # it may not be seeded yet, and draws more than its task
            seed = int(self.np_random.integers(2**31))
        observation, info = env.reset(seed=seed, options={"task_id": task_id.removeprefix(f"{name}/")})
        self._now = env
        return observation, {**info, "task_id": task_id, "environment": name}

    def step(self, action: str) -> tuple[str, Any, bool, bool, Info]:
        return self._current().step(action)

    def expert(self) -> str:
        return str(self._current().get_wrapper_attr("expert")())

    def random_action(self, rng: np.random.Generator) -> str:
        return str(self._current().get_wrapper_attr("random_action")(rng))

    def close(self) -> None:
        for env in self.envs.values():
            env.close()

    def _current(self) -> gym.Env[str, str]:
        if self._now is None:
            raise gym.error.ResetNeeded("there is no running episode; call reset() before step()")
        return self._now

    def __repr__(self) -> str:
        return f"MixedEnv({', '.join(self.envs)})"


def _tasks(name: str, env: gym.Env[str, str]) -> Sequence[str]:
    task_ids = task_ids_of(env)
    if not task_ids:
        raise ConfigError(f"{name} has no task_ids, or its split holds no task; leave it out, or take another split")
    return task_ids


class _Prefixed(LazyIds):
    def __init__(self, prefix: str, task_ids: Sequence[str]) -> None:
        self._prefix, self._task_ids = prefix, task_ids

    def __len__(self) -> int:
        return len(self._task_ids)

    def __contains__(self, task_id: object) -> bool:
        known = isinstance(task_id, str) and task_id.startswith(self._prefix)
        return known and str(task_id).removeprefix(self._prefix) in self._task_ids

    def _at(self, index: int) -> str:
        return self._prefix + self._task_ids[index]


class _InTurn(LazyIds):
    """Several sequences in turn: the first item of each, then the second of each.

    >>> list(_InTurn(["ab", "123456", "xyz"]))
    ['a', '1', 'x', 'b', '2', 'y', '3', 'z', '4', '5', '6']
    """

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __contains__(self, item: object) -> bool:
        return any(item in part for part in self._parts)

    def _at(self, index: int) -> str:
        turns = range(max(map(len, self._parts)) + 1)
        turn = bisect.bisect_right(turns, index, key=self._before) - 1
        left = [part for part in self._parts if len(part) > turn]
        return left[index - self._before(turn)][turn]

    def _before(self, turn: int) -> int:
        return sum(min(len(part), turn) for part in self._parts)


def spec_of(env: str | EnvSpec) -> str | EnvSpec:
    """Returns what ``gym.make`` takes for `--env`: the id, or a spec that mixes several."""
    if not isinstance(env, str):
        return env
    names = list(read_environments(env))
    return names[0] if len(names) == 1 else mixed({name: name for name in names})
