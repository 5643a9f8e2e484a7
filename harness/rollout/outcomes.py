"""Tells the horizon controller how the episodes of an update ended."""

import copy
import numbers
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eh_gym import HorizonController, SharedHorizon
from eh_gym.errors import ConfigError
from harness.rollout.episode_metrics import mean
from harness.types.trajectory import Trajectory


def tell_controller(controller: HorizonController | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Records every episode in the given order, moves K once, and returns the ``horizon/…`` metrics.

    Episodes whose environment failed are not recorded. Without a controller there are no metrics.
    """
    if controller is None:
        return {}
    played = [t for t in trajectories if t.end != "environment-error"]
    metrics = {"horizon/k": float(controller.horizon), "horizon/k_mean": mean([t.horizon for t in played])}
    metrics["horizon/binds"] = float(_binds(played))
    for trajectory in played:
        controller.record(trajectory.outcome())
    return {**controller.update(), **metrics}


def check_controller(controller: HorizonController) -> None:
    """Lets a copy of a controller move K once, to refuse a wrong answer before the first update.

    A controller that can't be copied, or that is shared between processes, is not checked.
    """
    try:
        trial = copy.deepcopy(controller)
        if trial is controller and not isinstance(controller, SharedHorizon):  # one of ours, which no copy parts
            trial = pickle.loads(pickle.dumps(controller))
    except Exception:  # such as one that holds a file
        return
    if trial is controller:
        return
    metrics: Any = trial.update()
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"update() of {controller!r} must return a dict of metrics, got {metrics!r}; return {{}} if it has none"
        )
    for name, value in metrics.items():
        if not str(name).startswith(("horizon/", "custom/")):
            raise ConfigError(
                f"update() of {controller!r} must name its metrics horizon/…, or custom/… for your own, got {name!r}"
            )
        if not isinstance(value, numbers.Real):
            raise ConfigError(f"update() of {controller!r} must return numbers, got {value!r} for {name!r}")


def _binds(trajectories: Sequence[Trajectory]) -> bool:
    """Whether K ends most episodes, and is not much longer than the successes need, if there are any."""
    cut = mean([t.end == "horizon" for t in trajectories])
    used = [t.length / t.horizon for t in trajectories if t.success and t.horizon]
    return cut > 0.5 and (not used or float(np.percentile(used, 90)) >= 0.5)
