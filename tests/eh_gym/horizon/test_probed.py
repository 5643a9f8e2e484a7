"""Some episodes run at a K of their own, chosen by their seeds."""

import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, KeyedHorizon, ProbedHorizon, SharedHorizon


def probes(controller, seeds):
    return [controller.horizon_for({}, seed) == 50 for seed in seeds]


@pytest.mark.parametrize("fraction", [0.0, 0.125, 0.5, 1.0])
@pytest.mark.parametrize("seeds", [range(20_000), [None] * 20_000], ids=["seeded", "unseeded"])
def test_the_share_of_probes(fraction, seeds):
    share = sum(probes(ProbedHorizon(FixedHorizon(10), 50, fraction), seeds)) / 20_000
    assert share == pytest.approx(fraction, abs=0.01 if 0 < fraction < 1 else 0)


def test_an_episode_is_a_probe_by_its_seed_alone():
    first, second = (ProbedHorizon(FixedHorizon(k), 50, 0.3) for k in (10, 20))
    probes(first, [None] * 7)
    first.update()
    assert probes(first, range(100)) == probes(second, range(100))


def test_more_probes_contain_the_fewer():
    few, many = (probes(ProbedHorizon(FixedHorizon(10), 50, f), range(500)) for f in (0.1, 0.4))
    assert all(m for f, m in zip(few, many, strict=True) if f)


def test_the_others_have_the_controllers_k_and_it_hears_everything():
    inner = ElasticHorizon(k0=10, min_successes=2, estimator="product-limit")
    probed = ProbedHorizon(inner, 50, 0.5)
    assert {probed.horizon_for({}, seed) for seed in range(50)} == {10, 50}
    for length, horizon in ((8, 10), (45, 50)):
        probed.record(EpisodeOutcome(length, horizon, True))
    assert probed.update()["horizon/boundary"] == 45
    assert probed.horizon == inner.horizon == 14
    assert {probed.horizon_for({}, seed) for seed in range(50)} == {14, 50}


def test_unseeded_episodes_go_on_where_the_state_was_saved():
    first, second = (ProbedHorizon(FixedHorizon(10), 50, 0.5) for _ in range(2))
    probes(first, [None] * 11)
    second.load_state_dict(first.state_dict())
    assert probes(first, [None] * 60) == probes(second, [None] * 60)
    with pytest.raises(StateError, match="unseeded must be a whole number >= 0, got -1"):
        second.load_state_dict(first.state_dict() | {"unseeded": -1})


def test_a_keyed_controller_inside_is_asked_with_the_info():
    keyed = KeyedHorizon(lambda: ElasticHorizon(k0=10, min_successes=1, alpha=1), key="level")
    for level, length in ((1, 20), (2, 30)):
        keyed.record(EpisodeOutcome(length, 50, True, info={"level": level}))
    keyed.update()
    assert {ProbedHorizon(keyed, 50, 0.5).horizon_for({"level": 1}, seed) for seed in range(50)} == {30, 50}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((15, 50, 0.1), "controller must be a HorizonController, got 15"),
        ((FixedHorizon, 50, 0.1), "controller must be a HorizonController, got <class"),
        ((FixedHorizon(10), 50, "0.1"), r"probe_fraction must be in \[0, 1\], got '0.1'"),
        ((FixedHorizon(10), 0, 0.1), "probe_k must be a whole number >= 1"),
        ((FixedHorizon(10), 50, 1.1), r"probe_fraction must be in \[0, 1\], got 1.1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ProbedHorizon(*arguments)


def test_other_processes_could_not_tell_probes():
    with pytest.raises(ConfigError, match="gives each episode a K of its own"):
        SharedHorizon(ProbedHorizon(FixedHorizon(10), 50, 0.1))
