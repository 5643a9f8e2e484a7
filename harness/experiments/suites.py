"""The suites: the paper's six experiments and three of this project. Each is a list of arms, which are settings to compare.

`harness.sweep` runs the suites, and `harness.experiments.suite_table` makes their tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.settings.grpo import GRPOConfig

__all__ = ["PAPER_SUITES", "SUITES", "SuiteArm", "quick_settings", "suite_arms"]


@dataclass(frozen=True)
class SuiteArm:
    """One arm of a suite: its name in tables and figures, and its values of fields of `GRPOConfig`."""

    label: str
    settings: Mapping[str, Any]


def quick_settings(config: GRPOConfig) -> GRPOConfig:
    """Returns the settings with ``--quick``: fewer held-out episodes, more evaluations, and the tiny model on the CPU."""
    return dataclasses.replace(
        config,
        device="cpu" if config.model == "tiny" else config.device,
        eval_tasks=64,
        eval_rollouts=8,
        eval_every=max(1, config.updates // 12),
        keep_checkpoints=1,
    )


def suite_arms(suite: str, base: GRPOConfig, *, quick: bool) -> list[SuiteArm]:
    """Returns the arms of a suite.

    Args:
        suite: One of `SUITES`.
        base: The settings that all arms share. The schedules are stretched to its number of updates.
        quick: Makes fewer arms.
    """
    return SUITES[suite](base, quick)


def _saturation(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """RQ1: several fixed K. The K of the evaluation is never below that of the training."""
    sweep = (5, 10, 15, 20, 25, 30, 40, 50) if quick else (10, 15, 20, 30, 40, 50, 60, 70, 80)
    return [SuiteArm(f"K={k}", {"wrapper": "fixed", "k0": k} | ({"k_max": k} if k > base.k_max else {})) for k in sweep]


def _fixed(*horizons: int) -> list[SuiteArm]:
    return [SuiteArm(f"K={k}", {"wrapper": "fixed", "k0": k}) for k in horizons]


def _schedules(base: GRPOConfig) -> list[SuiteArm]:
    """The two schedules, stretched as in the paper: linear from 10 to k_max over the run, and a stage for each quarter of it."""
    starts = {
        base.updates * i // 4: k for i, k in enumerate((15, 20, 30, 50))
    }  # a run of under 4 updates has fewer stages
    stages = ",".join(f"{update}:{k}" for update, k in starts.items())
    increment = (base.k_max - base.linear_start) / base.updates
    return [
        SuiteArm("TTI", {"wrapper": "tti", "stages": stages}),
        SuiteArm("ScalingInter", {"wrapper": "linear", "linear_increment": increment}),
    ]


def _convergence(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """RQ2: the elastic horizon from below and from above, against the schedules."""
    starts = [SuiteArm(f"elastic K0={k0}", {"wrapper": "elastic", "k0": k0}) for k0 in (10, 50)]
    return starts + _schedules(base)


def _comparison(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """RQ3: a short and a long fixed horizon, the schedules, and the elastic horizon."""
    return [*_fixed(15, 50), *_schedules(base), SuiteArm("elastic", {"wrapper": "elastic"})]


def _percentile(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """The ablation of the statistic of the successes' lengths."""
    names = {"mean": "mean", "P50": "p50", "P75": "p75", "P90": "p90", "P95": "p95", "max": "max"}
    return [SuiteArm(label, {"wrapper": "elastic", "statistic": name}) for label, name in names.items()]


def _headroom(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """The ablation of the headroom above the boundary."""
    return [SuiteArm(f"Δ={delta}", {"wrapper": "elastic", "delta": float(delta)}) for delta in (0, 5, 10, 15, 20)]


def _ema(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """The ablation of the smoothing of K. With 1, K is not smoothed."""
    alphas = (0.1, 0.2, 1.0) if quick else (0.05, 0.1, 0.2, 0.5, 1.0)
    return [SuiteArm(f"α={alpha:g}", {"wrapper": "elastic", "alpha": alpha}) for alpha in alphas]


def _learning(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """Which default learns most from its tokens: the elastic horizon under several losses and samplers, and its rivals.

    Truncated episodes have the paper's weight, 1, unless an arm says otherwise.
    """
    plain, half = {"truncated_weight": 1.0}, {"truncated_weight": 0.5}
    elastic = {"wrapper": "elastic", "k0": 10}
    wide = {"delta": 15.0, "alpha": 0.5}
    rivals = [*_fixed(15, 30, 50), *_schedules(base)]
    return [
        *(SuiteArm(arm.label, {**arm.settings, **plain}) for arm in rivals),
        *(SuiteArm(f"{arm.label}, x 0.5", {**arm.settings, **half}) for arm in _fixed(30, 50)),
        SuiteArm("elastic", elastic | plain),
        SuiteArm("elastic, x 0.5", elastic | half),
        SuiteArm("elastic, x 0", elastic | {"truncated_weight": 0.0}),
        SuiteArm("P90 + 15, α=0.5", elastic | wide | plain),
        SuiteArm("P90 + 15, α=0.5, x 0.5", elastic | wide | half),
        SuiteArm("K0=50, x 0.5", elastic | half | {"k0": 50}),
    ]


def _recurring(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """A horizon for each task against one for all, on tasks that come again and again."""
    tti, _ = _schedules(base)
    elastic = {"wrapper": "elastic", "k0": 10}
    return [
        *_fixed(15, 30, 50),
        tti,
        SuiteArm("elastic", elastic),
        SuiteArm("elastic K0=50", elastic | {"k0": 50}),
        SuiteArm("elastic by task", elastic | {"horizon_key": "task_id"}),
        SuiteArm("task", {"wrapper": "task"}),
        SuiteArm("Toggle", {"wrapper": "task", "wrapper_args": '{"delta": 0, "free_every": 2}'}),
    ]


def _pretrained(base: GRPOConfig, quick: bool) -> list[SuiteArm]:
    """RQ1 to RQ3 with a pretrained model: fixed horizons, the elastic one from below and from above, and one for each task."""
    *elastic, tti, _ = _convergence(base, quick)
    return [*_fixed(15, 30, 50), *elastic, SuiteArm("task", {"wrapper": "task"}), tti]


SUITES: dict[str, Callable[[GRPOConfig, bool], list[SuiteArm]]] = {
    "saturation": _saturation,
    "convergence": _convergence,
    "comparison": _comparison,
    "percentile": _percentile,
    "headroom": _headroom,
    "ema": _ema,
    "learning": _learning,
    "pretrained": _pretrained,
    "recurring": _recurring,
}
"""The suites by name. Each function takes the settings that all arms share, and whether the sweep is quick."""

PAPER_SUITES = tuple(name for name in SUITES if name not in ("learning", "pretrained", "recurring"))
"""The paper's suites, in the order in which ``--suite all`` runs them."""
