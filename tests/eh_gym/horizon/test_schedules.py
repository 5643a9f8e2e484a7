from fractions import Fraction

import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import FixedHorizon, LinearHorizon, MultiplicativeHorizon, StagedHorizon


@pytest.mark.parametrize("delta", ["0.1", "0.2", "0.3", "0.7", "1", "1.1", "3"])
def test_linear_floors_as_exact_arithmetic_does(delta):
    schedule = LinearHorizon(7, 90, float(delta))
    exact = [min(int(7 + Fraction(delta) * t), 90) for t in range(1000)]
    assert [schedule.horizon_at(t) for t in range(1000)] == exact


def test_linear_reaches_k_max_however_steep():
    assert LinearHorizon(5, 50, 1e300).horizon_at(10**10) == 50


@pytest.mark.parametrize("updates", [-1, 1.5, "3", None, True])
def test_an_edited_state_is_refused(updates):
    controller = FixedHorizon(3)
    with pytest.raises(StateError, match="updates must be"):
        controller.load_state_dict(controller.state_dict() | {"updates": updates})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FixedHorizon(0), "k0 must be"),
        (lambda: LinearHorizon(5, 9, 0), "delta must be"),
        (lambda: LinearHorizon(5, 2, 1), "k_max must be"),
        (lambda: MultiplicativeHorizon(5, 9, 0), "stage_updates must be"),
        (lambda: StagedHorizon([15, 20]), "stages must be"),
        (lambda: StagedHorizon({1: 5}), "add 0: K"),
        (lambda: StagedHorizon({0: 5, -1: 5}), "got -1"),
        (lambda: StagedHorizon({0: 5, "soon": 5}), "got 'soon'"),
        (lambda: StagedHorizon({0: 5, 7: 0}), r"stages\[7\] must be"),
    ],
)
def test_wrong_arguments_are_refused_by_their_name(make, name):
    with pytest.raises(ConfigError, match=name):
        make()
