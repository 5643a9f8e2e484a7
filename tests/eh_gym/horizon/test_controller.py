import json

import numpy as np
import pytest

from eh_gym import make_controller
from eh_gym.errors import ConfigError, UserCodeError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, KeyedHorizon, SharedHorizon, StagedHorizon

NAN = float("nan")


@pytest.mark.parametrize(
    "arguments",
    [
        *({"length": length} for length in (0, -5, 16, NAN, 3.0, True, "3", None)),
        *({"horizon": k} for k in (0, NAN, "15")),
        *({"success": s} for s in ("False", None, NAN, 1)),
        {"truncated": "no"},
    ],
)
def test_an_outcome_that_no_episode_can_have_is_refused(arguments):
    with pytest.raises(ConfigError, match=f"^{next(iter(arguments))} must be"):
        EpisodeOutcome(**{"length": 3, "horizon": 15, "success": True, **arguments})


def test_numpys_numbers_and_bools_make_an_outcome_that_can_be_saved():
    outcome, controller = EpisodeOutcome(np.int64(1), np.int32(1), np.True_, np.False_), ElasticHorizon()
    controller.record(outcome)
    assert outcome == EpisodeOutcome(1, 1, True)
    assert json.loads(json.dumps(controller.state_dict()))["lengths"] == [1]


@pytest.mark.parametrize("outcome", [{"length": 9, "horizon": 15, "success": True}, EpisodeOutcome])
def test_a_record_of_anything_else_says_what_to_pass(outcome):
    with SharedHorizon(ElasticHorizon()) as shared:
        for controller in (shared, ElasticHorizon(), FixedHorizon(3), KeyedHorizon(ElasticHorizon, "level")):
            with pytest.raises(ConfigError, match=r"pass EpisodeOutcome\("):
                controller.record(outcome)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("elastic", {"k0": 12, "alpha": 0.3}, ElasticHorizon(k0=12, alpha=0.3)),
        ("eh_gym.horizon:FixedHorizon", {"k0": 7}, FixedHorizon(7)),
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
        ("elastik", {}, "elastic, fixed, linear, .*'elastik'"),
        (":Seeking", {}, "MODULE:CLASS"),
        ("./seeking.py:Seeking", {}, "./seeking.py:Seeking"),
        ("no_such_module:Seeking", {}, "No module named 'no_such_module'"),
        ("eh_gym.horizon:Seeking", {}, "has no attribute 'Seeking'"),
        ("json:dumps", {"obj": 3}, "json:dumps .*horizon, record, update"),
        ("fixed", {"k": 7}, r"takes k0, got \{'k': 7\}.*did you mean k0\?"),
        ("elastic", {"k0": 7, "alfa": 1}, "did you mean alpha"),
        ("fixed", {"k0": 0}, "^k0 must be"),
        ("json:loads", {"s": "{"}, "json:loads can't be made: its code raised JSONDecodeError: "),
    ],
)
def test_a_name_that_makes_no_controller_says_what_is_wrong(name, settings, message):
    with pytest.raises((ConfigError, UserCodeError), match=message):
        make_controller(name, **settings)
