"""The suites: the paper's six experiments and three of this project. Each is a TOML file in ``suites/``.

A file has the suite's question, its arms (settings of `GRPOConfig` to compare), the columns and figures of its report, and the
paper's own numbers as printed. An em dash marks a cell that the paper leaves empty, an asterisk its mark of unstable training.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from eh_gym import LinearHorizon, TTIHorizon
from harness.settings.grpo import GRPOConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PAPER_SUITES", "SUITES", "SuiteFile", "suite_arms", "suite_file"]

PAPER_SUITES = ("saturation", "convergence", "comparison", "percentile", "headroom", "ema")
"""The paper's suites, in the order in which ``--suite all`` runs them."""

SUITES = (*PAPER_SUITES, "learning", "pretrained", "recurring")

_PAPER_UPDATES = 200  # for which TTI's stages are


@dataclass(frozen=True)
class SuiteFile:
    """What a suite's file says."""

    title: str
    about: str
    columns: Sequence[Sequence[str]]  # of each table, by the keys of `harness.sweep.analysis.COLUMNS`
    figures: Sequence[str]  # by the names of `harness.report.drawings`
    arms: Mapping[str, Mapping[str, Any]]  # the settings of each arm, by its name in tables
    quick: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the arms with --quick, if they are others
    defaults: Mapping[str, str] = field(default_factory=dict)  # flags; the command line must give an empty one
    paper: Sequence[Mapping[str, Any]] = ()  # tables: title, columns, and in rows the texts of an arm


@cache
def suite_file(name: str) -> SuiteFile:
    """Reads a suite's file. A name that is none of `SUITES` stands for runs that are named one by one."""
    path = files("harness.sweep") / "suites" / f"{name if name in SUITES else 'runs'}.toml"
    return SuiteFile(**tomllib.loads(path.read_text(encoding="utf-8")))


def suite_arms(name: str, base: GRPOConfig, *, quick: bool) -> dict[str, dict[str, Any]]:
    """Returns the arms of a suite: for each label its own settings, by the names of their flags.

    All arms share `base`. The two schedules are stretched to its number of updates. All are evaluated at the same K, unless an
    arm needs a larger one.
    """
    file = suite_file(name)
    arms = file.quick if quick and file.quick else file.arms
    return {label: _fitted(dict(own), base) for label, own in arms.items()}


def _fitted(own: dict[str, Any], base: GRPOConfig) -> dict[str, Any]:
    if own["wrapper"] == "tti":  # a run of under 4 updates has fewer stages
        own["stages"] = {base.updates * update // _PAPER_UPDATES: k for update, k in TTIHorizon().stages.items()}
    if own["wrapper"] == "linear":
        paper = LinearHorizon()
        own["delta"] = (paper.k_max - paper.k_min) / base.updates
    own["eval_horizon"] = max(own.get("eval_horizon", 0), base.evaluation_horizon)
    return own
