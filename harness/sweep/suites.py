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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PAPER_SUITES", "SUITES", "SuiteFile", "suite_arms", "suite_file"]

PAPER_SUITES = ("saturation", "convergence", "comparison", "percentile", "headroom", "ema")
"""The paper's suites, in the order in which ``--suite all`` runs them."""

SUITES = (*PAPER_SUITES, "learning", "pretrained", "recurring")


@dataclass(frozen=True)
class SuiteFile:
    """What a suite's file says."""

    title: str
    about: str
    columns: Sequence[Sequence[str]]  # of each table, by the keys of `harness.sweep.analysis.COLUMNS`
    figures: Sequence[str]  # by the names of `harness.report.drawings`
    arms: Mapping[
        str, Mapping[str, Any]
    ]  # the settings of each arm, by its name in tables, and by the names of their flags
    quick: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the arms with --quick, if they are others
    defaults: Mapping[str, str] = field(default_factory=dict)  # flags that the command line may give otherwise
    paper: Sequence[Mapping[str, Any]] = ()  # tables: title, columns, and in rows the texts of an arm


@cache
def suite_file(name: str) -> SuiteFile:
    """Reads a suite's file. A name that is none of `SUITES` stands for runs that are named one by one."""
    path = files("harness.sweep") / "suites" / f"{name if name in SUITES else 'runs'}.toml"
    return SuiteFile(**tomllib.loads(path.read_text(encoding="utf-8")))


def suite_arms(name: str, *, quick: bool) -> Mapping[str, Mapping[str, Any]]:
    """Returns the arms of a suite: for each label its own settings, by the names of their flags."""
    file = suite_file(name)
    return file.quick if quick and file.quick else file.arms
