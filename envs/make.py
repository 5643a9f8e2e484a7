"""Makes environments from the words of a command line."""

import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.checked import CheckedEnv, place_of, said_by
from eh_gym.errors import ConfigError, EHError, UserCodeError
from eh_gym.ranges import near


def registered(env_id: str) -> EnvSpec:
    """The spec of an environment by its name.

    Args:
        env_id: An id of gymnasium; ``MODULE:ID``, which imports the module that registers the id; or ``FILE.py:CLASS``
            or ``MODULE:CLASS`` for a class, or a function that returns an environment.
    """
    place, _, name = env_id.rpartition(":")
    if place.endswith(".py"):
        return _spec_of_class(env_id)
    try:
        if place:
            importlib.import_module(place)
        return gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        if hasattr(sys.modules.get(place), name):
            return _spec_of_class(env_id)
        why = re.sub(" Did you mean: `(?!EH-).*", "", str(error))  # for Nope it is gymnasium's own Hopper
        raise ConfigError(
            f"gymnasium knows no {env_id} ({why}); python -m envs list names this project's. For one of yours give "
            "FILE.py:CLASS, or MODULE:ID for the module that registers it"
        ) from error


def _spec_of_class(env_id: str) -> EnvSpec:
    module, name, kind = _class_of(env_id)
    if not callable(kind) or (isinstance(kind, type) and not issubclass(kind, gym.Env)):
        classes = [n for n, one in vars(module).items() if isinstance(one, type) and issubclass(one, gym.Env)]
        wrong = f"{env_id} is no gymnasium.Env" if kind else f"{module.__file__} has no {name}"
        raise ConfigError(f"{wrong}{near(name, classes)}" if classes else f"{wrong}, and no gymnasium.Env")
    # The name is pickled, not the class: another process knows the class only when it has loaded the file.
    return EnvSpec(f"{name}-v0", entry_point=functools.partial(make_from_name, env_id))


def absolute(names: str) -> str:
    """The text of ``--env`` with absolute paths of files, which a run needs that is resumed from another folder.

    >>> absolute("EH-Cabinet-v0:2,/my/../maze.py:Maze")
    'EH-Cabinet-v0:2,/maze.py:Maze'
    """
    return ",".join(os.path.abspath(one.strip()) if ".py:" in one else one for one in names.split(","))


def has_splits(env_id: str) -> bool:
    entry = registered(env_id).entry_point
    return not isinstance(entry, functools.partial) or takes_split(entry)


def make_from_name(make: str | Callable[..., Any], **arguments: Any) -> Any:
    """Makes an environment with a class, its name, or a function. It gets the split only if it takes one."""
    kind: Callable[..., Any] = _class_of(make)[2] if isinstance(make, str) else make
    if not takes_split(kind):
        arguments.pop("split", None)
    return kind(**arguments)


def _class_of(env_id: str) -> tuple[ModuleType, str, Any]:
    """The module of FILE.py:CLASS or MODULE:CLASS, the name of the class, and the class, or None if there is none."""
    place, _, name = env_id.rpartition(":")
    module = _loaded(Path(place).absolute()) if place.endswith(".py") else importlib.import_module(place)
    return module, name, getattr(module, name, None)


@functools.cache
def _loaded(path: Path) -> ModuleType:
    if not path.is_file():
        there = [str(file) for file in sorted(path.parent.glob("*.py"))]
        raise ConfigError(f"there is no file {path}{near(str(path), there) if there else ''}")
    name = path.stem  # textworld.py, which imports TextWorld, becomes textworld_
    while name in sys.modules or getattr(PathFinder.find_spec(name), "origin", str(path)) != str(path):
        name += "_"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it may raise anything
        del sys.modules[name]
        raise ConfigError(f"{path} can't be imported: {said_by(error)}") from error
    return module


def takes_split(make: Callable[..., Any]) -> bool:
    if isinstance(make, functools.partial) and make.func is make_from_name:
        (make,) = make.args
        make = _class_of(make)[2] if isinstance(make, str) else make
    taken = inspect.signature(make).parameters
    return "split" in taken or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())


def make_environment(env: str | EnvSpec, args: Mapping[str, Any]) -> gym.Env[str, str]:
    """Makes an environment of a spec, or of a name that `registered` takes, with further arguments of ``gym.make``."""
    try:
        # gymnasium's checker breaks at the first step after a first reset that raised.
        return gym.make(registered(env) if isinstance(env, str) else env, disable_env_checker=True, **args)
    except EHError:
        raise
    except Exception as error:
        name, given = env if isinstance(env, str) else env.id, f" with {dict(args)}" if args else ""
        its = error.__cause__ if type(error) is type(error.__cause__) is TypeError else error  # gymnasium makes another
        place = place_of(its.__traceback__)
        if isinstance(error, (gym.error.Error, ImportError, TypeError)) and (not place or place.startswith(__file__)):
            raise ConfigError(f"{name} can't be made{given} ({error})") from error
        raise UserCodeError(f"{name} can't be made: its code raised {said_by(its)}") from error


def checked_environment(env: str | EnvSpec, args: Mapping[str, Any], success_threshold: float = 1.0) -> CheckedEnv:
    """Makes one environment as `make_environment` does. `CheckedEnv` explains the threshold."""
    tests = f"python -m envs check {quote(env)}" if isinstance(env, str) else "eh_gym.testing.TextEnvContract"
    return CheckedEnv(make_environment(env, args), success_threshold, f"; {tests} says what else the environment needs")


def json_object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"""{flag} is not JSON ({error}); write {flag} '{{"name": 1}}'""") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {text!r}")
    return value
