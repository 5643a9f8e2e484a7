"""Tells the horizon controller how the episodes of an update ended."""

from __future__ import annotations

from collections.abc import Sequence

from eh_gym import HorizonController
from harness.rollout.episode_metrics import mean
from harness.types.trajectory import Trajectory

__all__ = ["tell_controller"]


def tell_controller(controller: HorizonController | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Records every episode with the controller, in the given order, and moves K once.

    Episodes whose environment failed say nothing about the agent, so they are not recorded.

    Args:
        controller: None for no limit.
        trajectories: One update's episodes, of all ranks.

    Returns:
        The ``horizon/…`` metrics: K of these episodes, their budget of tokens if they have one, and what the controller reports.
    """
    if controller is None:
        return {}
    heard = [t for t in trajectories if t.end != "environment-error"]
    metrics = {"horizon/k": float(controller.horizon), "horizon/k_mean": mean([t.horizon for t in heard])}
    if budget := getattr(controller, "token_budget", 0):
        metrics["horizon/token_budget"] = float(budget)
    for trajectory in heard:
        controller.record(trajectory.outcome())
    return controller.update() | metrics
