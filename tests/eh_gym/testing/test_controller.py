"""The controllers' contract finds what is wrong with a controller; tests/eh_gym/horizon has the right ones."""

import contextlib
import random
import threading

import pytest

from eh_gym import ElasticHorizon, EpisodeOutcome
from eh_gym.errors import StateError
from eh_gym.testing import ControllerContract


class Right(ElasticHorizon):
    def __init__(self):
        super().__init__(min_successes=1, alpha=1)


class Real(Right):
    horizon = property(lambda self: self.k_real)


class Hasty(Right):
    def record(self, outcome):
        super().record(outcome)
        self.update()


class Late(Right):
    def update(self):
        k = float(self.horizon)
        super().update()
        return {"horizon/k": k + 1}


class Dice(Right):
    def update(self):
        self.k_max = 10**9
        self.record(EpisodeOutcome(random.randint(1, 10**6), 10**6, True))
        return super().update()


class Forgetful(Right):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "lengths": state["lengths"][:1]})


class Shared(Right):
    def state_dict(self):
        self.saved = super().state_dict()
        return self.saved

    def record(self, outcome):
        super().record(outcome)
        vars(self).get("saved", {}).update(super().state_dict())


class Trusting(Right):
    def load_state_dict(self, state):
        with contextlib.suppress(StateError):
            super().load_state_dict(state)


class Spoiled(Right):
    def load_state_dict(self, state):
        self.record(EpisodeOutcome(3, 9, True))
        super().load_state_dict(state)


class Unsafe(Right):
    busy = False

    def update(self):
        if self.busy:
            raise RuntimeError("two at once")
        self.busy = True
        threading.Event().wait(0.0001)
        self.busy = False
        return super().update()


WHOLE = "test_k_is_a_whole_number_of_steps_at_all_times"
METRICS = "test_update_returns_finite_or_nan_floats_named_horizon_or_custom"
OTHERS = "test_the_states_of_other_controllers_are_refused_and_change_nothing"
FAULTS = [
    (Real, WHOLE, "must be an int, got 15.0"),
    (Hasty, "test_recording_alone_moves_nothing", r"record\(\) moved K from 15 to 50"),
    (Late, METRICS, "K of the next episodes"),
    (Dice, "test_the_same_life_gives_the_same_k", "the same outcomes"),
    (Forgetful, "test_a_loaded_state_has_the_same_future", "after loading"),
    (Shared, "test_a_saved_state_stays_as_it_was", r"copy in state_dict\(\)"),
    (Trusting, OTHERS, "load_state_dict took"),
    (Spoiled, OTHERS, "before it had changed"),
    (Trusting, "test_a_cut_state_is_refused", "load_state_dict took"),
    (Unsafe, "test_threads_may_call_everything_at_once", "with a lock"),
]


def contract_of(build):
    class Tests(ControllerContract):
        def make(self):
            return build()

    return Tests()


@pytest.mark.parametrize(("faulty", "name", "message"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_found_and_named(faulty, name, message):
    with pytest.raises(AssertionError, match=message):
        getattr(contract_of(faulty), name)()
