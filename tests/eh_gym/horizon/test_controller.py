"""What a controller can be told, and what it refuses to hear."""

import json

import numpy as np
import pytest

from eh_gym import make_controller
from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import (
    ElasticHorizon,
    EpisodeOutcome,
    FixedHorizon,
    KeyedHorizon,
    SharedHorizon,
    StagedHorizon,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ({"length": length}, r"length must be a whole number of steps in 1..horizon \(15\), got")
            for length in (0, -5, 16, 500, NAN, 3.0, True, "3", None)
        ),
        *(({"horizon": k}, "horizon must be the episode's K, a whole number >= 1, got") for k in (0, -1, NAN, "15")),
        *(({"success": s}, "success must be True or False, got") for s in ("False", None, NAN, 1)),
        ({"truncated": "no"}, "truncated must be True or False, got 'no'"),
    ],
)
def test_an_outcome_that_no_episode_can_have_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        EpisodeOutcome(**{"length": 3, "horizon": 15, "success": True, **arguments})


def test_numpys_numbers_and_bools_make_an_outcome():
    outcome = EpisodeOutcome(np.int64(3), np.int32(15), np.True_, np.False_)
    assert outcome == EpisodeOutcome(3, 15, True)


@pytest.fixture(params=["elastic", "fixed", "keyed", "shared"])
def controller(request):
    elastic = ElasticHorizon(min_successes=1)
    if request.param == "shared":
        with SharedHorizon(elastic) as shared:
            yield shared
    else:
        yield {
            "elastic": elastic,
            "fixed": FixedHorizon(3),
            "keyed": KeyedHorizon(ElasticHorizon, "level"),
        }[request.param]


@pytest.mark.parametrize("outcome", [{"length": 9, "horizon": 15, "success": True}, 9, None, EpisodeOutcome])
def test_a_record_of_anything_else_says_what_to_pass(controller, outcome):
    with pytest.raises(ConfigError, match=r"record\(\) takes an eh_gym.EpisodeOutcome, got .*; pass EpisodeOutcome\("):
        controller.record(outcome)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": [-5]}, "lengths must be a list of whole numbers >= 1"),
        ({"lengths": [True]}, "lengths must be a list of whole numbers >= 1"),
        ({"lengths": "9"}, "lengths must be a list of whole numbers >= 1"),
        ({"k_real": True}, "k_real must be in 5..50"),
        ({"k_real": NAN}, "k_real must be in 5..50"),
    ],
)
def test_a_state_that_cannot_be_is_refused(change, message):
    saved = ElasticHorizon()
    saved.record(EpisodeOutcome(9, 15, True))
    state = json.loads(json.dumps(saved.state_dict()))
    with pytest.raises(StateError, match=message):
        ElasticHorizon().load_state_dict({**state, **change})


def test_a_schedule_s_updates_are_no_bool():
    with pytest.raises(StateError, match="updates must be a whole number >= 0, got True"):
        FixedHorizon(3).load_state_dict({**FixedHorizon(3).state_dict(), "updates": True})


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("elastic", {"k0": 12, "alpha": 0.3}, ElasticHorizon(k0=12, alpha=0.3)),
        ("fixed", {"k": 7}, FixedHorizon(7)),
        ("eh_gym.horizon:FixedHorizon", {"k": 7}, FixedHorizon(7)),
        ("eh_gym:ElasticHorizon", {}, ElasticHorizon()),
        ("staged", json.loads('{"stages": {"0": 15, "50": 20}}'), StagedHorizon({0: 15, 50: 20})),
    ],
)
def test_a_controller_is_made_by_its_name(name, settings, expected):
    made = make_controller(name, **settings)
    assert type(made) is type(expected)
    assert made.state_dict() == expected.state_dict()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "elastik",
            {},
            "must be one of elastic, fixed, linear, multiplicative, progressive, staged, tokens, or MODULE:CLASS, got 'elastik'",
        ),
        (None, {}, "must be one of elastic"),
        (":Seeking", {}, "or MODULE:CLASS, got ':Seeking'"),
        ("./seeking.py:Seeking", {}, "./seeking.py:Seeking can't be imported"),
        ("no_such_module:Seeking", {}, "no_such_module:Seeking can't be imported .*No module named 'no_such_module'"),
        ("eh_gym.horizon:Seeking", {}, "eh_gym.horizon:Seeking can't be imported .*has no attribute 'Seeking'"),
        ("json:dumps", {"obj": 3}, "json:dumps made '3', which is no controller; it needs horizon, record, update"),
        ("json:decoder", {}, "json:decoder can't be called"),
        ("fixed", {}, r"fixed takes k, got \{\} \(missing a required argument"),
        ("fixed", {"kay": 7}, r"fixed takes k, got \{'kay': 7\}"),
        ("fixed", {"k": 0}, "k must be a whole number >= 1"),
    ],
)
def test_a_name_that_makes_no_controller_says_what_is_wrong(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_controller(name, **settings)
