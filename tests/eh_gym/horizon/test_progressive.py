"""ProgressiveHorizon: K grows with the share of successes."""

import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import EpisodeOutcome, ProgressiveHorizon


def ks(controller, *updates):
    """K after each update; an update is a text with + for a success and - for a failure."""
    found = []
    for episodes in updates:
        for sign in episodes:
            controller.record(EpisodeOutcome(length=3, horizon=controller.horizon, success=sign == "+"))
        found.append(int(controller.update()["horizon/k"]))
    return found


def test_k_grows_when_the_share_of_the_last_window_reaches_the_threshold():
    controller = ProgressiveHorizon(k0=10, k_max=22, step=5, threshold=0.75, window=4)
    # 2/4; the last four are now ++++; then the count begins anew: 3 are too few, ++++ are enough, at most to 22.
    assert ks(controller, "--++", "++", "+++", "+", "++++", "++++") == [10, 15, 15, 20, 22, 22]


def test_failures_never_lower_it():
    assert ks(ProgressiveHorizon(k0=10, window=2, threshold=0.5), "++", "--", "----") == [15, 15, 15]


def test_episodes_that_began_with_a_smaller_k_do_not_count():
    controller = ProgressiveHorizon(k0=10, window=2, threshold=0.5)
    assert ks(controller, "++") == [15]
    for _ in range(2):
        controller.record(EpisodeOutcome(length=3, horizon=10, success=True))
    assert controller.update()["horizon/k"] == 15


def test_the_share_is_that_of_the_comparison():
    controller = ProgressiveHorizon(window=4)
    assert controller.update()["horizon/success"] != controller.update()["horizon/success"]  # NaN
    ks(controller, "+-")
    assert controller.update()["horizon/success"] == 0.5


@pytest.mark.parametrize(
    "settings",
    [{"k_max": 10, "k0": 20}, {"k0": 0}, {"step": 0}, {"threshold": 0.0}, {"threshold": float("nan")}, {"window": 0}],
)
def test_wrong_arguments_are_refused_by_their_name(settings):
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))} must be"):
        ProgressiveHorizon(**settings)


@pytest.mark.parametrize("change", [{"k": 9}, {"k": 51}, {"k": "15"}, {"successes": [1]}, {"successes": "++"}])
def test_an_edited_state_is_refused(change):
    controller = ProgressiveHorizon()
    with pytest.raises(StateError, match="cut or edited"):
        controller.load_state_dict(controller.state_dict() | change)
