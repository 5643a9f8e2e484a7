"""What each suite varies, that suites share their runs, and that what their files name is there."""

from __future__ import annotations

import pytest

from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.section import changed
from harness.sweep.analysis import COLUMNS
from harness.sweep.manifest import run_name
from harness.sweep.suites import PAPER_SUITES, SUITES, suite_arms, suite_file
from harness.sweep.sweep import parse

FULL, QUICK = (
    changed(from_recipe("quickstart"), model="Qwen/Qwen2.5-7B-Instruct"),
    parse(["--suite", "ema", "--quick"]).train,
)
DRAWN = {"saturation", "cost", "success", "success by tokens", "k", "tokens", "lengths"}


def names(suite: str, base: GRPOConfig, *, quick: bool) -> dict[str, str]:
    arms = suite_arms(suite, base, quick=quick)
    return {label: run_name(changed(base, **own)) for label, own in arms.items()}


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(("base", "quick"), [(FULL, False), (QUICK, True)])
def test_every_arm_is_a_run_of_its_own(suite: str, base: GRPOConfig, quick: bool) -> None:
    found = names(suite, base, quick=quick)
    assert len(set(found.values())) == len(found) > 1
    for own in suite_arms(suite, base, quick=quick).values():
        assert changed(base, **own).controller() is not None


@pytest.mark.parametrize("suite", [*SUITES, "runs"])
def test_a_suite_s_columns_figures_and_rows_of_the_paper_are_known(suite: str) -> None:
    file = suite_file(suite)
    assert {key for keys in file.columns for key in keys} <= COLUMNS.keys()
    assert set(file.figures) <= DRAWN
    for table in file.paper:
        assert table.keys() == {"title", "columns", "rows"}
        assert table["rows"].keys() <= file.arms.keys()
        assert {len(texts) for texts in table["rows"].values()} == {len(table["columns"])}


def test_the_default_elastic_run_is_shared() -> None:
    found = [names(suite, QUICK, quick=True)[label] for suite, label in (
        ("comparison", "elastic"), ("percentile", "P90"), ("headroom", "Δ=10"), ("ema", "α=0.1"),
        ("convergence", "elastic K0=10"),
    )]  # fmt: skip
    assert len(set(found)) == 1
    assert names("saturation", QUICK, quick=True)["K=50"] == names("comparison", QUICK, quick=True)["K=50"]
    every = [name for suite in PAPER_SUITES for name in names(suite, QUICK, quick=True).values()]
    assert (len(every), len(set(every))) == (31, 23)


@pytest.mark.parametrize(
    ("updates", "stages", "increment"),
    [(200, "0:15,50:20,100:30,150:50", 0.2), (8, "0:15,2:20,4:30,6:50", 5.0), (2, "0:20,1:50", 20.0)],
)
def test_the_schedules_are_the_paper_s_and_stretch_with_the_run(updates: int, stages: str, increment: float) -> None:
    arms = suite_arms("comparison", changed(FULL, updates=updates), quick=False)
    assert (arms["TTI"]["stages"], arms["ScalingInter"]["linear_increment"]) == (stages, increment)


def test_a_large_fixed_k_raises_that_of_the_evaluation() -> None:
    assert suite_arms("saturation", FULL, quick=False)["K=80"]["k_max"] == 80
    assert suite_arms("saturation", changed(FULL, k_max=100), quick=False)["K=80"]["k_max"] == 100
    assert from_recipe("quickstart").k_max == 50
