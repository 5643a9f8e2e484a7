import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome

LEVELS = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "max": 100}
STATISTICS = ["mean", *LEVELS]


def succeed(controller, *lengths):
    for length in lengths:
        horizon = max(int(length), controller.horizon)  # K may have been larger when the episode began
        controller.record(EpisodeOutcome(length=length, horizon=horizon, success=True))


def one(k0, target, **settings):
    controller = ElasticHorizon(k0, 1, 200, delta=0, buffer_size=1, min_successes=1, **settings)
    succeed(controller, target)
    controller.update()
    return controller


class Slow:
    """The paper's Algorithm 1 (or 2), lines 7 to 18, in exact fractions and without a thought for speed."""

    def __init__(self, k0, k_min, k_max, alpha, delta, buffer_size, min_successes, statistic, rounding):
        self.k, self.k_min, self.k_max = Fraction(k0), k_min, k_max
        self.alpha, self.delta = Fraction(str(alpha)), Fraction(str(delta))
        self.size, self.least, self.statistic, self.rounding = buffer_size, min_successes, statistic, rounding
        self.buffer = []

    def update(self, episodes):
        for length, success in episodes:
            if success:
                self.buffer.append(length)
                if len(self.buffer) > self.size:
                    self.buffer.pop(0)
        if len(self.buffer) >= self.least:
            target = min(max(self.boundary() + self.delta, self.k_min), self.k_max)
            self.k = (1 - self.alpha) * self.k + self.alpha * target
            if self.rounding == "floor-state":
                self.k = Fraction(math.floor(self.k))

    def boundary(self):
        if self.statistic == "mean":
            return Fraction(sum(self.buffer), len(self.buffer))
        place = Fraction(LEVELS[self.statistic], 100) * (len(self.buffer) - 1)
        low, high = sorted(self.buffer)[math.floor(place)], sorted(self.buffer)[math.ceil(place)]
        return low + (place - math.floor(place)) * (high - low)


def test_the_arithmetic_of_one_update():
    paper = "k0=15, k_min=5, k_max=50, alpha=0.1, delta=10.0, buffer_size=100, min_successes=20, statistic='p90'"
    assert repr(ElasticHorizon()) == f"ElasticHorizon({paper}, rounding='floor', cold_growth=0.0)"
    controller = ElasticHorizon(min_successes=10)
    succeed(controller, 3, 4, 5, 6, 7, 8, 9, 10, 11, 21)
    # P90 of ten lengths stands at place 0.9 * 9 = 8.1 from 0: 11 + 0.1 * (21 - 11) = 12. Target 12 + 10 = 22.
    # K = 0.9 * 15 + 0.1 * 22 = 15.7, of which 15 is applied.
    expected = {"k": 15, "k_real": 15.7, "boundary": 12, "target": 22, "buffer_size": 10}
    assert controller.update() == pytest.approx({f"horizon/{name}": value for name, value in expected.items()})
    # K = 0.9 * 15.7 + 0.1 * 22 = 16.33.
    assert controller.update()["horizon/k_real"] == pytest.approx(16.33)
    assert controller.horizon == 16


def test_a_cold_start_that_grows_ends_with_the_last_needed_success():
    top = ElasticHorizon(k0=45, cold_growth=3)
    assert [top.update()["horizon/k"] for _ in range(3)] == [48, 50, 50]
    controller = ElasticHorizon(k0=15, min_successes=2, cold_growth=1.5)
    assert [controller.update()["horizon/k"] for _ in range(3)] == [16, 18, 19]
    succeed(controller, 18)
    metrics = controller.update()
    assert (metrics["horizon/k_real"], metrics["horizon/buffer_size"]) == (21, 1)
    assert math.isnan(metrics["horizon/boundary"])
    assert math.isnan(metrics["horizon/target"])
    succeed(controller, 18)
    # P90 of 18, 18 is 18, the target 28: from here on the closed loop.
    assert controller.update()["horizon/k_real"] == pytest.approx(0.9 * 21 + 0.1 * 28)


@pytest.mark.parametrize("alpha", ["0.05", "0.3", "1.0"])
@pytest.mark.parametrize("rounding", ["floor", "floor-state"])
def test_one_update_floors_as_exact_arithmetic_does_for_all_integer_pairs(alpha, rounding):
    exact = Fraction(alpha)
    wrong = [
        (k, target)
        for k in range(5, 51)
        for target in range(5, 51)
        if one(k, target, alpha=float(alpha), rounding=rounding).horizon != math.floor((1 - exact) * k + exact * target)
    ]
    assert wrong == []


@pytest.mark.parametrize("rounding", ["floor", "nearest", "floor-state"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_it_equals_the_slow_implementation(rounding, data):
    size = data.draw(st.integers(1, 12))
    args = (
        data.draw(st.integers(5, 50)),
        5,
        50,
        data.draw(st.sampled_from([0.1, 0.2, 0.5, 1.0])),
        data.draw(st.sampled_from([0, 0.5, 3, 10, 20])),
        size,
        data.draw(st.integers(1, size)),
        data.draw(st.sampled_from(STATISTICS)),
        rounding,
    )
    fast, slow = ElasticHorizon(*args), Slow(*args)
    for _ in range(data.draw(st.integers(1, 15))):
        episodes = data.draw(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=8))
        for length, success in episodes:
            fast.record(EpisodeOutcome(length=length, horizon=60, success=success))
        slow.update(episodes)
        metrics = fast.update()
        assert fast.k_real == pytest.approx(float(slow.k), abs=1e-10)
        applied = round(fast.k_real) if rounding == "nearest" else math.floor(slow.k + Fraction(1, 10**9))
        assert metrics["horizon/k"] == fast.horizon == applied
        assert fast.state_dict()["lengths"] == slow.buffer


def test_many_threads_record_and_none_is_lost():
    controller = ElasticHorizon(buffer_size=4000, min_successes=1)

    def play(thread):
        for i in range(500):
            succeed(controller, thread * 500 + i + 1)
            if i % 50 == 0:
                controller.update()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(play, range(8)))
    assert sorted(controller.state_dict()["lengths"]) == list(range(1, 4001))


@pytest.mark.parametrize(
    "arguments",
    [
        *({"k0": k0} for k0 in (60, 3)),
        *({"alpha": alpha} for alpha in (0, 1.5)),
        *({name: -1} for name in ("delta", "cold_growth")),
        *({name: 0} for name in ("k_min", "buffer_size", "min_successes")),
        {"k_max": 2},
        {"min_successes": 20, "buffer_size": 10},
        {"statistic": "p91"},
        {"rounding": "ceil"},
    ],
)
def test_wrong_arguments_are_refused_by_their_name(arguments):
    with pytest.raises(ConfigError, match=f"^{next(iter(arguments))} must be"):
        ElasticHorizon(**arguments)


@pytest.mark.parametrize(
    "change",
    [
        *({"k_real": k} for k in (51.0, float("nan"), None, True)),
        *({"lengths": lengths} for lengths in ("1234", [3, "4"], [None], [-5], [True])),
    ],
)
def test_an_edited_state_is_refused_and_changes_nothing(change):
    controller = ElasticHorizon()
    succeed(controller, 9)
    before = controller.state_dict()
    with pytest.raises(StateError, match=f"^{next(iter(change))} must be"):
        controller.load_state_dict(before | change)
    assert controller.state_dict() == before
