"""A share of the episodes, chosen by their seeds, gets one extension beyond the controller's K."""

import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, KeyedHorizon, SharedHorizon, SoftHorizon


def extended(soft, seeds):
    """Of each seed, whether its episode gets the extension."""
    return [soft.horizon_for({}, seed) > soft.horizon for seed in seeds]


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seeds", [range(20_000), [None] * 20_000], ids=["seeded", "unseeded"])
def test_the_share_and_the_extension(share, seeds):
    soft = SoftHorizon(FixedHorizon(10), extension=4, share=share)
    given = [soft.horizon_for({}, seed) for seed in seeds]
    assert set(given) <= {10, 14}
    assert given.count(14) / 20_000 == pytest.approx(share, abs=0.01 if 0 < share < 1 else 0)


def test_an_episode_is_extended_by_its_seed_alone():
    first, second = (SoftHorizon(FixedHorizon(k), share=0.3) for k in (10, 20))
    extended(first, [None] * 7)
    first.update()
    assert extended(first, range(100)) == extended(second, range(100))


def test_a_larger_share_contains_the_smaller():
    few, many = (extended(SoftHorizon(FixedHorizon(10), share=share), range(500)) for share in (0.1, 0.4))
    assert all(m for f, m in zip(few, many, strict=True) if f)


def test_unseeded_episodes_go_on_where_the_state_was_saved():
    first, second = (SoftHorizon(FixedHorizon(10), share=0.5) for _ in range(2))
    extended(first, [None] * 11)
    second.load_state_dict(first.state_dict())
    assert extended(first, [None] * 60) == extended(second, [None] * 60)
    with pytest.raises(StateError, match="unseeded must be a whole number >= 0, got -1"):
        second.load_state_dict(first.state_dict() | {"unseeded": -1})


def test_other_processes_could_not_tell_the_share():
    with pytest.raises(ConfigError, match="gives each episode a K of its own"):
        SharedHorizon(SoftHorizon(FixedHorizon(10)))


def test_the_extension_ends_at_k_max_and_takes_no_step_away():
    assert {SoftHorizon(FixedHorizon(48), 5, 1.0, k_max=50).horizon_for({}, seed) for seed in range(5)} == {50}
    assert {SoftHorizon(FixedHorizon(60), 5, 1.0, k_max=50).horizon_for({}, seed) for seed in range(5)} == {60}


def test_k_follows_the_longer_successes_that_extensions_show():
    """Successes of 12 steps, K0 = 10 without headroom: without extensions nothing is ever seen; with them K arrives."""

    def end(controller):
        for update in range(60):
            for i in range(64):
                k = controller.horizon_for({}, 64 * update + i)
                controller.record(EpisodeOutcome(min(12, k), k, success=k >= 12, truncated=k < 12))
            controller.update()
        return controller.horizon

    plain = ElasticHorizon(k0=10, delta=0, alpha=1.0, min_successes=5)
    assert end(SoftHorizon(plain, 5, 0.0)) == 10
    assert end(SoftHorizon(ElasticHorizon(k0=10, delta=0, alpha=1.0, min_successes=5), 5, 0.1)) == 12


def test_it_extends_the_k_of_each_kind():
    keyed = KeyedHorizon(lambda: ElasticHorizon(min_successes=1, alpha=1.0), "level")
    soft = SoftHorizon(keyed, 5, 1.0)
    soft.record(EpisodeOutcome(3, 15, True, info={"level": 1}))
    soft.update()
    assert (soft.horizon_for({"level": 1}, 0), soft.horizon_for({"level": 2}, 0)) == (18, 20)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"extension": 0}, "extension must be a whole number >= 1"), ({"k_max": 0}, "k_max must be a whole number >= 1"),
    ({"share": 1.5}, r"share must be in \[0, 1\], got 1.5"), ({"share": "0.1"}, r"share must be in \[0, 1\], got '0.1'"),
    ({"controller": 10}, "controller must be a HorizonController, got 10"),
    ({"controller": FixedHorizon}, "controller must be a HorizonController, got <class"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SoftHorizon(**{"controller": FixedHorizon(10), **arguments})
