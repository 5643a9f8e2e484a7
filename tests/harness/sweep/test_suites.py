"""What each suite varies, that suites share their runs, and that what their files name is there."""

import pytest

from eh_gym import ElasticHorizon, FixedHorizon, LinearHorizon, TaskHorizon, TTIHorizon
from eh_gym.errors import ConfigError
from harness.settings.grpo import from_recipe
from harness.settings.section import changed
from harness.sweep.analysis import COLUMNS
from harness.sweep.manifest import run_name
from harness.sweep.suites import ARMS, PAPER_SUITES, SUITES, suite_file
from harness.sweep.sweep import Sweep, parse

FULL, SMALL = Sweep(from_recipe("paper"), suite="ema"), parse(["--suite", "ema"])
DRAWN = {"saturation", "success", "success by tokens", "k", "tokens", "lengths"}


def names(suite, sweep=SMALL):
    return {label: run_name(config) for label, (_, config) in sweep.arms(suite).items()}


def horizons_of(sweep):
    return {label: repr(config.horizon) for label, (_, config) in sweep.arms(sweep.suite).items()}


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("sweep", [FULL, SMALL])
def test_every_arm_is_a_run_of_its_own(suite, sweep):
    found = names(suite, sweep)
    assert len(set(found.values())) == len(found) > 1


@pytest.mark.parametrize("suite", [*SUITES, ARMS])
def test_a_suite_s_columns_figures_and_rows_of_the_paper_are_known(suite):
    file = suite_file(suite)
    assert {key for keys in file.columns for key in keys} <= COLUMNS.keys()
    assert set(file.figures) <= DRAWN
    for table in file.paper:
        assert table.keys() == {"title", "columns", "rows"}
        assert table["rows"].keys() <= file.arms.keys()
        assert {len(texts) for texts in table["rows"].values()} == {len(table["columns"])}


def test_the_default_elastic_run_is_shared():
    found = [names(suite)[label] for suite, label in (
        ("comparison", "elastic"), ("percentile", "P90"), ("headroom", "Δ=10"), ("ema", "α=0.1"),
        ("convergence", "elastic K0=10"),
    )]  # fmt: skip
    assert len(set(found)) == 1
    assert names("saturation")["K=50"] == names("comparison")["K=50"]
    every = [name for suite in PAPER_SUITES for name in names(suite).values()]
    assert (len(every), len(set(every))) == (34, 26)


@pytest.mark.parametrize(
    ("updates", "stages", "delta"),
    [(200, {0: 15, 50: 20, 100: 30, 150: 50}, 0.2), (8, {0: 15, 2: 20, 4: 30, 6: 50}, 5.0), (2, {0: 20, 1: 50}, 20.0)],
)
def test_the_schedules_are_the_paper_s_and_stretch_with_the_run(updates, stages, delta):
    horizons = horizons_of(Sweep(changed(FULL.train, updates=updates), suite="comparison"))
    assert horizons["TTI"] == repr(TTIHorizon(stages))
    assert horizons["ScalingInter"] == repr(LinearHorizon(10, 50, delta))


def test_all_arms_are_evaluated_at_the_same_k_and_a_large_fixed_k_at_its_own():
    def k_of(words, suite="comparison"):
        arms = parse(["--suite", suite, *words.split()]).arms(suite)
        return {label: config.evaluation_horizon for label, (_, config) in arms.items()}

    assert [set(k_of(words).values()) for words in ("", "--k-max 60", "--eval-horizon 20")] == [{50}, {60}, {20}]
    saturation = k_of("", "saturation")
    assert (saturation["K=10"], saturation["K=50"], saturation["K=80"]) == (50, 50, 80)
    assert k_of("--eval-horizon 100", "saturation")["K=80"] == 100
    with pytest.raises(ConfigError, match=r"arm K=50 .*--k-max"):
        k_of("--k-max 30")


def test_flags_are_for_every_arm_and_those_of_a_horizon_for_the_arms_that_have_it():
    bounds = ["--k-max", "60", "--k-min", "7"]
    sweep = parse(["--suite", "pretrained", "--seeds", "5", "--", "--kl-coef", "0.1", "--alpha", "0.4", *bounds])
    assert sweep.seeds == 5
    assert {config.loss.kl_coef for _, config in sweep.arms("pretrained").values()} == {0.1}
    horizons = horizons_of(sweep)
    assert horizons["elastic K0=10"] == repr(ElasticHorizon(k0=10, alpha=0.4, k_max=60, k_min=7))
    assert horizons["task"] == repr(TaskHorizon(k_min=7, k_max=60))
    assert horizons["K=15"] == repr(FixedHorizon(15))
    horizons = horizons_of(parse(["--suite", "comparison", "--updates", "10", *bounds]))
    assert horizons["ScalingInter"] == repr(LinearHorizon(10, 60, 5.0))  # its k_min is where it begins


def test_an_arm_with_another_horizon_has_the_recipe_s_table_for_it(tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text("[horizon.elastic]\nalpha = 0.3\n[horizon.task]\nwindow = 8\n[horizon.linear]\nk_min = 20\n")
    words = ["--recipe", str(recipe), "--model", "tiny", "--updates", "10"]
    horizons = horizons_of(parse(["--suite", "pretrained", *words]))
    assert horizons["task"] == repr(TaskHorizon(window=8))
    assert horizons["elastic K0=50"] == repr(ElasticHorizon(k0=50, alpha=0.3, min_successes=20))
    horizons = horizons_of(parse(["--suite", "comparison", *words]))
    assert horizons["ScalingInter"] == repr(LinearHorizon(20, 50, 3.0))
