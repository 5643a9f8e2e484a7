"""A share of the episodes, chosen by their seeds, gets one extension beyond the controller's K."""

import pytest

from eh_gym.errors import ConfigError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, KeyedHorizon, SoftHorizon


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_the_share_and_the_extension(share):
    soft = SoftHorizon(FixedHorizon(10), extension=4, share=share)
    given = [soft.horizon_for({}, seed) for seed in range(20_000)]
    assert set(given) <= {10, 14}
    assert given.count(14) / 20_000 == pytest.approx(share, abs=0.01 if 0 < share < 1 else 0)


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
    ({"extension": 0}, "extension must be"), ({"share": 1.5}, "share must be in"), ({"k_max": 0}, "k_max must be"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SoftHorizon(FixedHorizon(10), **arguments)
    with pytest.raises(ConfigError, match="HorizonController"):
        SoftHorizon(10)
