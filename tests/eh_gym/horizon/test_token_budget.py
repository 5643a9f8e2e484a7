"""The closed loop on tokens: its arithmetic is ElasticHorizon's; what counts is what was recorded."""

import pytest

from eh_gym.errors import ConfigError
from eh_gym.horizon import ElasticHorizon, ElasticTokenBudget, EpisodeOutcome


def test_the_arithmetic_is_that_of_the_elastic_horizon():
    """P90 of 100, 200, ..., 1000 is 910; 910 + 500 = 1410; B = 0.9 2000 + 0.1 1410 = 1941."""
    tokens = ElasticTokenBudget(b0=2000, min_successes=10)
    steps = ElasticHorizon(k0=2000, k_min=500, k_max=8000, delta=500, min_successes=10)
    for n in range(100, 1001, 100):
        tokens.record(EpisodeOutcome(3, 50, True, tokens=n))
        tokens.record(EpisodeOutcome(50, 50, False, truncated=True, tokens=9999))  # a failure says nothing
        steps.record(EpisodeOutcome(n, 2000, True))
    moved, other = tokens.update(), steps.update()
    assert (moved["horizon/token_boundary"], moved["horizon/token_target"], tokens.token_budget) == (910, 1410, 1941)
    assert (moved["horizon/token_budget"], moved["horizon/buffer_size"]) == (other["horizon/k"], 10)
    assert (moved["horizon/k"], tokens.horizon) == (50, 50)


def test_wrong_arguments_are_refused_by_their_name():
    with pytest.raises(ConfigError, match="tokens=900"):
        ElasticTokenBudget().record(EpisodeOutcome(3, 50, True))
    with pytest.raises(ConfigError, match=r"b0, b_min.*k0 must be"):
        ElasticTokenBudget(b0=100)
    with pytest.raises(ConfigError, match="k_max must be"):
        ElasticTokenBudget(k_max=0)
