"""What an environment must return from reset and step."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

_NUMBER: tuple[Any, ...] = (float, int, np.bool_, numbers.Real)  # the quickest to tell first
MOST_REWARD = 1e12
"""The largest size of a reward, so that the square of a sum fits into a 32-bit float."""


def is_verdict(value: Any) -> bool:
    """Whether a value is True or False, 1 or 0, numpy's included.

    >>> [is_verdict(value) for value in (True, np.False_, 1.0, 0.5, float("nan"), "False", None)]
    [True, True, True, False, False, False, False]
    """
    return isinstance(value, _NUMBER) and bool(value in (0, 1))


def is_reward(value: Any) -> bool:
    """Whether a value is a number, numpy's included, at most `MOST_REWARD` from 0.

    >>> [is_reward(value) for value in (-0.5, np.True_, float("nan"), 10**400, "1")]
    [True, True, False, False, False]
    """
    return isinstance(value, _NUMBER) and bool(-MOST_REWARD <= value <= MOST_REWARD)


def reset_fault(answer: Any, task_id: str | None = None, *, text: bool = True) -> str:
    """Says what is wrong with the answer to a reset for `task_id` (None: any); empty if it is right.

    Without `text`, the environment may be any of Gymnasium's: only the pair and its info are checked.

    >>> reset_fault("guess")
    "reset must return (observation, info), got 'guess'; return both"
    >>> reset_fault(("guess", {"task_id": "2", "system_prompt": "rules"}), "1")
    "asked for task '1', got '2'; play the task that options['task_id'] of reset names, and return its id in the info"
    >>> reset_fault(("guess", {"task_id": "2"}))
    "info['system_prompt'] must be a str, got None; return it in the info of reset"
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"reset must return (observation, info), got {answer!r:.200}; return both"
    observation, info = answer
    if not isinstance(info, dict) or (text and not isinstance(observation, str)):
        return _shape_fault(observation, info, text)
    if not text:
        return ""
    for name in ("task_id", "system_prompt"):
        if not isinstance(info.get(name), str):
            return f"info[{name!r}] must be a str, got {info.get(name)!r}; return it in the info of reset"
    if task_id not in (None, info["task_id"]):
        return (
            f"asked for task {task_id!r}, got {info['task_id']!r}; play the task that options['task_id'] of reset "
            "names, and return its id in the info"
        )
    return ""


def step_fault(answer: Any, *, text: bool = True) -> str:
    """Says what is wrong with the answer to a step; empty if it is right. ``info["success"]`` may be missing.

    Without `text`, the environment may be any of Gymnasium's: its observation and its verdict are not checked.

    >>> step_fault(None)
    'step must return (observation, reward, terminated, truncated, info), got None; return all five'
    >>> step_fault(("closer", 0.2, True, False, {"success": "yes"}))
    "info['success'] must be True or False when a task ends, got 'yes'; correct it, or leave it out, so that the reward decides"
    """
    if not isinstance(answer, tuple) or len(answer) != 5:
        return (
            f"step must return (observation, reward, terminated, truncated, info), got {answer!r:.200}; return all five"
        )
    observation, reward, terminated, truncated, info = answer
    if not isinstance(info, dict) or (text and not isinstance(observation, str)):
        return _shape_fault(observation, info, text)
    if not isinstance(reward, _NUMBER):
        return f"the reward must be a number, got {reward!r:.200}; return 0.0 for a step that earns nothing"
    if type(terminated) is not bool or type(truncated) is not bool:
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not is_verdict(value):
                return f"{name} must be True or False, got {value!r:.200}"
    if not is_reward(reward):
        return (
            f"the reward must be a finite number, at most {MOST_REWARD:g} from 0, got {reward}; look for a division by "
            "zero, or a mean of nothing"
        )
    if "environment_error" in info:
        return "" if terminated or truncated else "info['environment_error'] must end the episode; return truncated"
    if text and terminated and not is_verdict(verdict := info.get("success", False)):
        return (
            f"info['success'] must be True or False when a task ends, got {verdict!r:.200}; correct it, or leave it "
            "out, so that the reward decides"
        )
    return ""


def _shape_fault(observation: Any, info: Any, text: bool) -> str:
    if text and not isinstance(observation, str):
        return f"an observation must be a str, got {observation!r:.200}; write it as text"
    return f"the info must be a dict, got {info!r:.200}; return {{}} for none"


def results_fault(results: Sequence[Any], calls: int) -> str:
    """Says what is wrong with the results of an action's calls; empty if they are right.

    >>> results_fault(["14:05"], 2)
    "info['tool_results'] must have a text for each of the 2 calls, got ['14:05']; return an error as text for a call that failed"
    """
    if len(results) == calls and all(isinstance(result, str) for result in results):
        return ""
    return (
        f"info['tool_results'] must have a text for each of the {calls} calls, got {list(results)!r}; return an error "
        "as text for a call that failed"
    )
