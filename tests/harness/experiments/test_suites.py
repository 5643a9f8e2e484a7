"""What each suite varies, and that suites share their runs."""

from __future__ import annotations

import dataclasses

import pytest

from harness.experiments.analysis import Arm
from harness.experiments.manifest import run_name
from harness.experiments.paper import PAPER
from harness.experiments.suite_table import suite_table
from harness.experiments.suites import PAPER_SUITES, SUITES, quick_settings, suite_arms
from harness.settings.grpo import GRPOConfig
from harness.settings.presets import preset

FULL, QUICK = GRPOConfig(model="Qwen/Qwen2.5-7B-Instruct"), preset([], quick_settings)


def names(suite: str, base: GRPOConfig, *, quick: bool) -> dict[str, str]:
    return {a.label: run_name(dataclasses.replace(base, **a.settings)) for a in suite_arms(suite, base, quick=quick)}


@pytest.mark.parametrize("suite", list(SUITES))
@pytest.mark.parametrize(("base", "quick"), [(FULL, False), (QUICK, True)])
def test_every_arm_is_a_run_of_its_own(suite: str, base: GRPOConfig, quick: bool) -> None:
    arms = suite_arms(suite, base, quick=quick)
    assert len({arm.label for arm in arms}) == len(set(names(suite, base, quick=quick).values())) == len(arms)
    for arm in arms:
        assert dataclasses.replace(base, **arm.settings).controller() is not None
    table = suite_table(suite, [Arm(arm.label, arm.settings, []) for arm in arms])
    assert [label for label, _, _ in table.rows] == [arm.label for arm in arms]


@pytest.mark.parametrize("suite", [s for s in PAPER if s != "saturation"])
def test_the_paper_s_rows_have_the_arms_labels(suite: str) -> None:
    labels = {arm.label for arm in suite_arms(suite, FULL, quick=False)}
    assert all(set(table.rows) <= labels for table in PAPER[suite])


def test_the_default_elastic_run_is_shared() -> None:
    found = [names(*key, QUICK, quick=True)[label] for *key, label in (
        ("comparison", "elastic"), ("percentile", "P90"), ("headroom", "Δ=10"), ("ema", "α=0.1"),
        ("convergence", "elastic K0=10"),
    )]  # fmt: skip
    assert len(set(found)) == 1
    assert names("saturation", QUICK, quick=True)["K=50"] == names("comparison", QUICK, quick=True)["K=50"]
    every = [name for suite in PAPER_SUITES for name in names(suite, QUICK, quick=True).values()]
    assert (len(every), len(set(every))) == (31, 23)


def test_the_schedules_are_the_paper_s_and_stretch_with_the_run() -> None:
    settings = {arm.label: arm.settings for arm in suite_arms("comparison", FULL, quick=False)}
    assert settings["TTI"]["stages"] == "0:15,50:20,100:30,150:50"
    assert settings["ScalingInter"]["linear_increment"] == 0.2
    short = {a.label: a.settings for a in suite_arms("comparison", dataclasses.replace(FULL, updates=8), quick=False)}
    assert short["TTI"]["stages"] == "0:15,2:20,4:30,6:50"
    assert short["ScalingInter"]["linear_increment"] == 5.0
    two = suite_arms("comparison", dataclasses.replace(FULL, updates=2), quick=False)
    assert next(arm.settings for arm in two if arm.label == "TTI")["stages"] == "0:20,1:50"
