"""Checks the answers of an environment, and says where in its code an exception came from."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.answers import reset_fault, step_fault
from eh_gym.errors import EHError, UserCodeError
from eh_gym.rewards import result_of

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Checks each answer of an environment. Errors name the task and the step.

    If an episode ends without a verdict, the sum of its rewards gives one, as ``info["success"]``.

    Args:
        env: The environment.
        success_threshold: The least sum of rewards that is a success, without a verdict.
        more: The end of messages about answers.

    Raises:
        UserCodeError: The environment has no spaces, an answer breaks the rules of `eh_gym.answers`, or the
            environment raised something else than an `EHError`.
    """

    def __init__(self, env: gym.Env[Any, Any], success_threshold: float = 1.0, more: str = "") -> None:
        super().__init__(env)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gym.Space):
                raise UserCodeError(
                    f"{type(env.unwrapped).__name__} has no {name}; make it an eh_gym.UnicodeText(…){more}"
                )
        self._threshold, self._more = success_threshold, more
        self._task: Any = None
        self._step, self._earned = 0, 0.0

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # gymnasium's Env has an attribute, its Wrapper a property
        """The environment's own spec."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Resets the environment."""
        task_id = options.get("task_id") if isinstance(options, dict) else None
        self._task, self._step, self._earned = task_id, 0, 0.0
        answer = self._answer(self.env.reset, seed=seed, options=options)
        if fault := reset_fault(answer, task_id):
            self._refuse(fault)
        self._task = answer[1]["task_id"]
        return answer

    def step(self, action: Any) -> Any:
        """Steps the environment."""
        self._step += 1
        answer = self._answer(self.env.step, action)
        if fault := step_fault(answer):
            self._refuse(fault)
        observation, reward, terminated, truncated, info = answer
        self._earned += float(reward)
        if terminated and not {"success", "environment_error"} & info.keys():
            won = result_of(self._earned, ended=True, threshold=self._threshold).success
            info = {**info, "success": won, "success_threshold": self._threshold}
        return observation, reward, terminated, truncated, info

    def _answer(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except EHError:
            raise
        except Exception as error:
            how = (
                "return truncated=True and info['environment_error'] = str(error) from step"
                if self._step
                else "raise eh_gym.errors.WorkerError from reset"
            )
            raise UserCodeError(
                f"{place(self._task, self._step)}: the environment raised {said_by(error)}; if it fails now and then, "
                f"as a simulator may, {how}, and the episode does not count and is played again"
            ) from error

    def _refuse(self, fault: str) -> NoReturn:
        raise UserCodeError(f"{place(self._task, self._step)}: {fault}{self._more}")


def place(task_id: Any, step: int) -> str:
    """Where in an episode something went wrong; step 0 is the reset.

    >>> place("train-7", 3), place(None, 0)
    ("task 'train-7', step 3", 'reset')
    """
    return f"{'' if task_id is None else f'task {task_id!r}, '}{f'step {step}' if step else 'reset'}"


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments; True if Python can't tell, as for builtins.

    >>> accepts(lambda m: None, 0, {}), accepts(print, 0, {})
    (False, True)
    """
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def said_by(error: BaseException) -> str:
    """The type of an exception, its text, and the line of the user's code that raised it.

    >>> try:
    ...     {}["anwser"]
    ... except KeyError as error:
    ...     said_by(error)[:18]
    "KeyError: 'anwser'"
    """
    try:
        text = str(error)
    except Exception as second:
        text = f"(its text can't be made: {type(second).__name__})"
    place = place_of(error.__traceback__)
    return f"{type(error).__name__}: {' '.join(text.split())[:2000]}{f' ({place})' if place else ''}"


def place_of(trace: TracebackType | None) -> str:
    """The last line of a traceback outside libraries, without the caller's; empty if there is none."""
    frames = [f for f in traceback.extract_tb(trace)[1:] if not f.filename.startswith((*_LIBRARIES, "<frozen"))]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""
