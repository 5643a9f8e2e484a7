"""Tests to inherit for a horizon controller. They do not judge whether its K is good."""

from __future__ import annotations

import json
import math
import pickle
import threading
from typing import Any

from eh_gym.errors import StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, HorizonController
from eh_gym.horizon.controller import episode_horizon


class ControllerContract:
    """Tests of an `eh_gym.HorizonController`. Inherit from this class and define `make`."""

    _made: tuple[HorizonController, ...] = ()

    def make(self) -> HorizonController:
        """A new controller with the same settings at every call."""
        raise NotImplementedError("say in make() how your controller is made")

    def teardown_method(self) -> None:
        """Closes the test's controllers."""
        for controller in self._made:
            getattr(controller, "close", lambda: None)()
        self._made = ()

    def _new(self) -> HorizonController:
        controller = self.make()
        self._made = (*self._made, controller)
        return controller

    def test_it_is_a_controller(self) -> None:
        controller = self._new()
        assert isinstance(controller, HorizonController), f"{controller!r} lacks one of a controller's five members"

    def test_k_is_a_whole_number_of_steps_at_all_times(self) -> None:
        controller = self._new()
        for update in range(31):
            k = controller.horizon
            assert type(k) is int, f"horizon must be an int, got {k!r}"
            assert k >= 1, f"horizon must be >= 1, got {k}"
            live(controller, 1, update)

    def test_recording_alone_moves_nothing(self) -> None:
        controller = self._new()
        before = controller.horizon
        for _ in range(200):
            controller.record(EpisodeOutcome(40, 50, True, task_id="task-1", info={"task_id": "task-1"}))
        assert controller.horizon == before, (
            f"record() moved K from {before} to {controller.horizon}; move it in update()"
        )

    def test_the_same_seed_and_info_have_the_same_k_until_the_next_update(self) -> None:
        """An episode that is started again gets the same K."""
        controller = self._new()
        live(controller, 6)
        episodes = [({"task_id": f"task-{i}"}, seed) for i in range(3) for seed in range(20)]
        first, second = ([episode_horizon(controller, *episode) for episode in episodes] for _ in range(2))
        assert first == second, f"the same episodes got {first} and {second}; derive K from the info and the seed"
        assert all(type(k) is int and k >= 1 for k in first), f"K must be an int >= 1, got {first}"

    def test_update_returns_finite_or_nan_floats_named_horizon_or_custom(self) -> None:
        controller = self._new()
        for _ in range(5):
            metrics = controller.update()
            live(controller, 1)
            assert metrics["horizon/k"] >= 1, f"horizon/k must be >= 1, got {metrics['horizon/k']}"
            for name, value in metrics.items():
                known = name.startswith(("horizon/", "custom/"))
                assert known, f"a metric's name must start with horizon/, or custom/ for one of your own, got {name!r}"
                assert type(value) is float, f"{name} must be a float, got {value!r}"
                assert not math.isinf(value), f"{name} must be finite or NaN, got {value}"
        k = controller.update()["horizon/k"]
        assert k == controller.horizon, f"horizon/k must be the K of the next episodes, {controller.horizon}, got {k}"

    def test_the_same_life_gives_the_same_k(self) -> None:
        first, second = live(self._new(), 20), live(self._new(), 20)
        assert first == second, f"the same outcomes gave {first} and {second}"

    def test_a_loaded_state_has_the_same_future(self) -> None:
        for past in (0, 1, 7):
            first, second = self._new(), self._new()
            live(first, past)
            live(second, 2, first=100)  # outcomes that loading must undo
            second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
            assert second.horizon == first.horizon, f"loaded K = {second.horizon}, expected {first.horizon}"
            expected, got = live(first, 12, past), live(second, 12, past)
            assert got == expected, f"after loading, the same outcomes gave {got}, expected {expected}"
            assert first.state_dict() == second.state_dict(), "the states differ after the same life"

    def test_a_saved_state_stays_as_it_was(self) -> None:
        """`state_dict` is a copy, and loading it takes one."""
        controller = self._new()
        live(controller, 4)
        state = controller.state_dict()
        text = json.dumps(state)
        live(controller, 4)
        assert json.dumps(state) == text, "the saved state changed while the controller went on; copy in state_dict()"
        controller.load_state_dict(state)
        live(controller, 4)
        assert json.dumps(state) == text, (
            "the loaded state changed while the controller went on; copy in load_state_dict()"
        )

    def test_the_states_of_other_controllers_are_refused_and_change_nothing(self) -> None:
        for other in (FixedHorizon(7), ElasticHorizon(k0=7, min_successes=1)):
            self.check_refuses(other.state_dict())

    def check_refuses(self, state: Any) -> str:
        """Checks that a new controller refuses `state` and stays as it is; returns the StateError's message."""
        controller = self._new()
        before = controller.state_dict()
        message = _refusal(controller, state)
        assert controller.state_dict() == before, f"it refused {state!r}, but not before it had changed"
        return message

    def test_a_cut_state_is_refused(self) -> None:
        controller = self._new()
        state = controller.state_dict()
        for key in state:
            _refusal(controller, {k: v for k, v in state.items() if k != key})
        others: tuple[Any, ...] = ({}, [], None, "state")
        for wrong in others:
            _refusal(controller, wrong)

    def test_a_pickled_one_goes_on_from_here(self) -> None:
        """Other processes and checkpoints need it pickled."""
        controller = self._new()
        live(controller, 5)
        copied = pickle.loads(pickle.dumps(controller))
        expected, got = live(controller, 12, 5), live(copied, 12, 5)
        assert got == expected, f"after pickling, the same outcomes gave {got}, expected {expected}"
        assert copied.state_dict() == controller.state_dict(), "the states differ after the same life"

    def test_threads_may_call_everything_at_once(self) -> None:
        controller, errors = self._new(), []
        start = threading.Barrier(6)

        def work() -> None:
            try:
                start.wait()
                for _ in range(20):
                    live(controller, 5)
                    controller.state_dict()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [], f"called from 6 threads it raised {errors[:1]}; guard its state with a lock"
        updates = controller.state_dict().get("updates", 6 * 20 * 5)
        assert updates == 6 * 20 * 5, (
            f"of {6 * 20 * 5} updates from 6 threads it counted {updates}; guard them with a lock"
        )
        assert controller.horizon >= 1, f"horizon must be >= 1, got {controller.horizon}"

    def test_its_repr_says_what_it_is(self) -> None:
        controller = self._new()
        text, expected = repr(controller), f"{type(controller).__name__}("
        assert text.startswith(expected), f"repr must start with {expected!r}, got {text!r}"


def live(controller: HorizonController, updates: int, first: int = 0) -> list[int]:
    """Runs updates with two outcomes each. Returns K, and that of one episode, after each update."""
    seen = []
    for update in range(first, first + updates):
        for i in range(2):
            success = (update + i) % 3 > 0
            task, length = f"task-{i}", 5 + (7 * update + i) % 40
            controller.record(EpisodeOutcome(length, 50 - i, success, not success, task, {"task_id": task}))
        controller.update()
        seen += [controller.horizon, episode_horizon(controller, {"task_id": "task-1"}, update)]
    return seen


def _refusal(controller: HorizonController, state: Any) -> str:
    try:
        controller.load_state_dict(state)
    except StateError as error:
        return str(error)
    raise AssertionError(
        f"load_state_dict took {state!r}; raise eh_gym.errors.StateError for what it has not made itself"
    )
