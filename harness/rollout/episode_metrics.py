"""The ``rollout/…`` and ``tokens/…`` metrics of one update's episodes."""

import math
from collections.abc import Sequence

import numpy as np

from harness.types.trajectory import Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory], update: int) -> dict[str, float]:
    """The metrics of one update's episodes; the glossary has the formulas."""
    valid = [t for t in trajectories if t.end != "environment-error"]
    successes = [t for t in valid if t.success]
    turns = [turn for t in valid for turn in t.turns]
    lengths = [t.length for t in successes]
    known = [t for t in valid if t.optimal_steps]
    third = np.quantile([t.optimal_steps or 0 for t in known], 2 / 3) if known else 0.0
    longest = [t for t in known if (t.optimal_steps or 0) >= third]
    action, every = sum(t.action_tokens for t in valid), sum(t.tokens for t in valid)
    return {
        "rollout/success": mean([t.success for t in valid]),
        "rollout/success_ceiling": mean([not t.horizon or (t.optimal_steps or 0) <= t.horizon for t in known]),
        "rollout/success_long": mean([t.success for t in longest]),
        "rollout/reward_mean": mean([t.reward for t in valid]),
        "rollout/truncated": mean([t.truncated for t in valid]),
        "rollout/length_mean": mean([t.length for t in valid]),
        "rollout/length_success_mean": mean(lengths),
        "rollout/length_success_p90": float(np.percentile(lengths, 90)) if lengths else math.nan,
        "rollout/steps_per_optimum": mean([t.length / t.optimal_steps for t in successes if t.optimal_steps]),
        "rollout/malformed": mean([turn.malformed for turn in turns]),
        "rollout/action_cut": mean([turn.cut for turn in turns]),
        "rollout/unfinished_reasoning": mean([turn.unfinished for turn in turns]),
        "rollout/reasoning_tokens": sum(turn.reasoning_tokens for turn in turns),
        "rollout/environment_errors": len(trajectories) - len(valid),
        "rollout/environment_retries": sum(t.retries for t in trajectories),
        "rollout/context_overflows": sum(t.end == "context" for t in valid),
        "rollout/policy_lag": mean([update - version for t in trajectories for version in t.versions]),
        "rollout/episodes": len(valid),
        "rollout/steps": len(turns),
        "rollout/action_tokens": action,
        "rollout/prompt_tokens": every - action,
        "tokens/update": every,
        "tokens/failed_attempts": sum(t.failed_tokens for t in trajectories),
        **_by_environment(valid),
        **_of_agents(valid),
    }


def _by_environment(valid: Sequence[Trajectory]) -> dict[str, float]:
    """Empty if a run has one environment."""
    by_name: dict[str, list[Trajectory]] = {}
    for t in valid:
        if "environment" in t.kinds:
            by_name.setdefault(t.kinds["environment"], []).append(t)
    metrics: dict[str, float] = {}
    for name, own in sorted(by_name.items()):
        metrics[f"rollout/episodes_of/{name}"] = len(own)
        metrics[f"rollout/success_of/{name}"] = mean([t.success for t in own])
        metrics[f"rollout/truncated_of/{name}"] = mean([t.truncated for t in own])
        metrics[f"rollout/length_mean_of/{name}"] = mean([t.length for t in own])
        metrics[f"tokens/update_of/{name}"] = sum(t.tokens for t in own)
    return metrics


def _of_agents(valid: Sequence[Trajectory]) -> dict[str, float]:
    agents = [t for t in valid if "agent" in t.info]
    if not agents:
        return {}
    return {
        "rollout/agent_failures": sum(t.failure is not None for t in agents),
        "rollout/agent_sequences": mean([len(t.sequences) for t in agents]),
    }


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
