"""The controllers' contract finds what is wrong with a controller, and says it; tests/eh_gym/horizon has the right ones."""

import random
import threading

import pytest

from eh_gym.errors import StateError
from eh_gym.testing import ControllerContract


class Mean:
    """A right one to break: K is the rounded mean of all successes, moved at update."""

    def __init__(self):
        self.lengths, self.k, self.lock = [10], 10.0, threading.Lock()

    @property
    def horizon(self):
        return max(1, round(self.k))

    def record(self, outcome):
        if outcome.success:
            with self.lock:
                self.lengths.append(outcome.length)

    def update(self):
        with self.lock:
            self.k = sum(self.lengths) / len(self.lengths)
            return {"horizon/k": float(self.horizon)}

    def state_dict(self):
        with self.lock:
            return {"kind": "Mean", "lengths": list(self.lengths), "k": self.k}

    def load_state_dict(self, state):
        if not isinstance(state, dict) or state.get("kind") != "Mean" or state.keys() != {"kind", "lengths", "k"}:
            raise StateError("not the state of a Mean")
        self.lengths, self.k = list(state["lengths"]), state["k"]

    def __getstate__(self):
        return {"lengths": list(self.lengths), "k": self.k}

    def __setstate__(self, state):
        vars(self).update(state, lock=threading.Lock())

    def __repr__(self):
        return f"{type(self).__name__}()"


class Real(Mean):
    horizon = property(lambda self: self.k)


class Hasty(Mean):
    def record(self, outcome):
        super().record(outcome)
        self.update()


class Late(Mean):
    def update(self):
        k = float(self.horizon)
        super().update()
        return {"horizon/k": k + 1}


class Dice(Mean):
    def update(self):
        self.lengths.append(random.randint(1, 99))
        return super().update()


class Forgetful(Mean):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.lengths = self.lengths[:1]


class Shared(Mean):
    def state_dict(self):
        return {"kind": "Mean", "lengths": self.lengths, "k": self.k}


class Trusting(Mean):
    def load_state_dict(self, state):
        self.lengths, self.k = list(state.get("lengths", [10])), state.get("k", 10.0)


class Spoiled(Mean):
    def load_state_dict(self, state):
        self.k = 3.0
        super().load_state_dict(state)


class Unsafe(Mean):
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
    (Real, WHOLE, "must be an int, got 10.0"),
    (Hasty, "test_recording_alone_moves_nothing", r"record\(\) moved K from 10 to 40"),
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
