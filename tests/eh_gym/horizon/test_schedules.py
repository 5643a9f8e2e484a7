from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import EpisodeOutcome, FixedHorizon, LinearHorizon, MultiplicativeHorizon, StagedHorizon
from eh_gym.horizon.checks import floor_to_steps

OUTCOME = EpisodeOutcome(length=4, horizon=10, success=True)


def horizons(controller, updates):
    seen = [controller.horizon]
    for _ in range(updates):
        controller.update()
        seen.append(controller.horizon)
    return seen


def test_fixed_stays():
    assert horizons(FixedHorizon(15), 5) == [15] * 6


def test_linear_is_the_papers_run():
    # Eq. 12: K = min(10 + 0.2 t, 50). 10 + 0.2 * 4 = 10.8 -> 10; 10 + 0.2 * 5 = 11; 10 + 0.2 * 199 = 49.8 -> 49.
    seen = horizons(LinearHorizon(10, 50, 0.2), 250)
    assert [seen[t] for t in (0, 4, 5, 199, 200, 250)] == [10, 10, 11, 49, 50, 50]


@pytest.mark.parametrize("delta", ["0.1", "0.2", "0.3", "0.7", "1", "1.1", "3"])
def test_linear_floors_as_exact_arithmetic_does(delta):
    schedule = LinearHorizon(7, 90, float(delta))
    exact = [min(int(7 + Fraction(delta) * t), 90) for t in range(1000)]
    assert [schedule.horizon_at(t) for t in range(1000)] == exact


def test_linear_reaches_k_max_however_steep():
    assert LinearHorizon(5, 50, 1e300).horizon_at(10**10) == 50


def test_multiplicative_is_equation_4():
    # K = min(10 * (t // 50 + 1), 35): 10, 20, 30, then 40 is over 35.
    seen = horizons(MultiplicativeHorizon(10, 35, stage_updates=50), 160)
    assert [seen[t] for t in (0, 49, 50, 99, 100, 149, 150, 160)] == [10, 10, 20, 20, 30, 30, 35, 35]


def test_staged_is_the_papers_tti_table():
    seen = horizons(StagedHorizon({0: 15, 50: 20, 100: 30, 150: 50}), 200)
    assert [seen[t] for t in (0, 49, 50, 99, 100, 149, 150, 200)] == [15, 15, 20, 20, 30, 30, 50, 50]


def test_staged_takes_its_stages_in_any_order_and_may_fall():
    assert horizons(StagedHorizon({3: 5, 0: 20, 1: 30}), 4) == [20, 30, 30, 5, 5]


@given(
    stages=st.dictionaries(st.integers(1, 60), st.integers(1, 99)), first=st.integers(1, 99), update=st.integers(0, 80)
)
def test_staged_holds_the_last_stage_begun(stages, first, update):
    slow = first
    for t in range(update + 1):
        slow = stages.get(t, slow)
    assert StagedHorizon({0: first, **stages}).horizon_at(update) == slow


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearHorizon(10, 50, 0.2),
        lambda: MultiplicativeHorizon(10, 50, 3),
        lambda: StagedHorizon({0: 15, 5: 20, 9: 30}),
    ],
)
def test_resuming_cannot_drift_and_outcomes_change_nothing(make):
    straight = horizons(make(), 40)
    first, second = make(), make()
    seen = horizons(first, 13)
    first.record(OUTCOME)
    second.record(OUTCOME)
    second.load_state_dict(first.state_dict())
    assert seen[:-1] + horizons(second, 27) == straight


def test_a_state_of_other_settings_is_refused():
    state = LinearHorizon(10, 50, 0.2).state_dict()
    with pytest.raises(StateError, match=r"'delta': 0\.2.*'delta': 0\.3.*build it with the saved settings"):
        LinearHorizon(10, 50, 0.3).load_state_dict(state)


@pytest.mark.parametrize("updates", [-1, 1.5, "3", None])
def test_an_edited_state_is_refused(updates):
    controller = FixedHorizon(3)
    with pytest.raises(StateError, match="updates must be a whole number >= 0"):
        controller.load_state_dict(controller.state_dict() | {"updates": updates})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedHorizon(0), r"k must be a whole number >= 1, got 0"),
        (lambda: FixedHorizon(1.5), r"k must be a whole number >= 1, got 1.5"),
        (lambda: FixedHorizon("15"), r"k must be a whole number >= 1, got '15'"),
        (lambda: FixedHorizon(True), r"k must be a whole number >= 1, got True"),
        (lambda: LinearHorizon(5, 2, 1), r"k_max must be >= k_min \(5\), got 2; raise k_max or lower k_min"),
        (lambda: LinearHorizon(5, 9, 0), r"delta must be > 0 steps per update, got 0; use FixedHorizon"),
        (lambda: LinearHorizon(5, 9, None), r"delta must be > 0 steps per update, got None"),
        (lambda: LinearHorizon(5, 9, float("nan")), r"delta must be > 0"),
        (lambda: MultiplicativeHorizon(5, 9, 0), r"stage_updates must be a whole number >= 1, got 0"),
        (lambda: StagedHorizon([15, 20]), r"stages must be \{update: K\}, got \[15, 20\]"),
        (lambda: StagedHorizon({}), r"must say K at update 0, got updates \[\]; add 0: K"),
        (lambda: StagedHorizon({1: 5}), r"must say K at update 0, got updates \[1\]; add 0: K"),
        (lambda: StagedHorizon({0: 5, -1: 5}), r"keyed by updates, whole and >= 0, got -1"),
        (lambda: StagedHorizon({0: 5, "soon": 5}), r"keyed by updates, whole and >= 0, got 'soon'"),
        (lambda: StagedHorizon({0: 5, 7: 0}), r"stages\[7\] must be a whole number >= 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_with_the_mend(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_floor_counts_a_whole_number_up_to_rounding_error_as_whole():
    assert 7 + 0.7 * 170 < 126
    assert floor_to_steps(7 + 0.7 * 170) == 126
    assert floor_to_steps(20 - 1e-6) == 19
