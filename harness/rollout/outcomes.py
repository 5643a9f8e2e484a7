"""Tells the horizon controller how the episodes of an update ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eh_gym import HorizonController
from harness.rollout.episode_metrics import mean
from harness.types.trajectory import Trajectory

__all__ = ["tell_controller"]


def tell_controller(controller: HorizonController | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Records every episode with the controller, in the given order, and moves K once. Returns the ``horizon/…`` metrics.

    Episodes whose environment failed are not recorded, because they say nothing about the agent. Without a controller there are
    no metrics.
    """
    if controller is None:
        return {}
    played = [t for t in trajectories if t.end != "environment-error"]
    metrics = {"horizon/k": float(controller.horizon), "horizon/k_mean": mean([t.horizon for t in played])}
    metrics["horizon/binds"] = float(_binds(played))
    for trajectory in played:
        controller.record(trajectory.outcome())
    return controller.update() | metrics


def _binds(trajectories: Sequence[Trajectory]) -> bool:
    """Whether K ends most episodes, and is not much longer than the successes need, if there are any."""
    cut = mean([t.end == "horizon" for t in trajectories])
    used = [t.length / t.horizon for t in trajectories if t.success and t.horizon]
    return cut > 0.5 and (not used or float(np.percentile(used, 90)) >= 0.5)
