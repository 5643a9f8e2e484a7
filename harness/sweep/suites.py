"""The suites: the paper's six experiments and four of this project. Each is a TOML file in ``suites/``.

A file has the suite's question, its arms, the columns and figures of its report, and the paper's own numbers as
printed. A dash marks a cell that the paper leaves empty, an asterisk its mark of unstable training. An arm has settings
of `GRPOConfig`, by the names of their flags.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAPER_SUITES = ("saturation", "convergence", "comparison", "percentile", "headroom", "ema")
"""The paper's suites, in the order in which ``--suite all`` runs them."""

SUITES = (*PAPER_SUITES, "learning", "pretrained", "recurring", "tau2")

ARMS = "arms"
"""The name of the suite that ``--arm`` makes on the command line."""


@dataclass(frozen=True)
class SuiteFile:
    """What a suite's file says."""

    title: str
    about: str
    columns: Sequence[Sequence[str]]  # of each table, by the keys of `harness.sweep.analysis.COLUMNS`
    figures: Sequence[str]  # by the names of `harness.report.drawings`
    arms: Mapping[str, Mapping[str, Any]]  # the settings of each arm, by its name in tables
    paper: Sequence[Mapping[str, Any]] = ()  # tables: title, columns, and in rows the texts of an arm


@cache
def suite_file(name: str) -> SuiteFile:
    path = files("harness.sweep") / "suites" / f"{name if name in SUITES else ARMS}.toml"
    return SuiteFile(**tomllib.loads(path.read_text(encoding="utf-8")))
