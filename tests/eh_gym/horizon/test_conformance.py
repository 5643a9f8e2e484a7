"""One contract for every controller: HorizonController, as eh_gym/horizon/controller.py and DESIGN.md state it."""

import inspect
import json
import math
import pickle
import threading

import pytest

import eh_gym.horizon
from eh_gym.errors import StateError
from eh_gym.horizon import (
    ElasticHorizon,
    EpisodeOutcome,
    FixedHorizon,
    HorizonController,
    KeyedHorizon,
    LinearHorizon,
    MultiplicativeHorizon,
    ProbedHorizon,
    SharedHorizon,
    StagedHorizon,
)
from eh_gym.horizon.controller import episode_horizon


def quick_elastic():
    return ElasticHorizon(min_successes=3)


MAKERS = {
    "fixed": lambda: FixedHorizon(15),
    "linear": lambda: LinearHorizon(10, 50, 0.4),
    "multiplicative": lambda: MultiplicativeHorizon(10, 50, 3),
    "staged": lambda: StagedHorizon({0: 15, 3: 20, 6: 30, 9: 50}),
    "elastic": lambda: ElasticHorizon(min_successes=3),
    "elastic-nearest": lambda: ElasticHorizon(min_successes=3, rounding="nearest"),
    "elastic-floor-state": lambda: ElasticHorizon(min_successes=3, rounding="floor-state"),
    "elastic-mean": lambda: ElasticHorizon(min_successes=3, statistic="mean"),
    "elastic-product-limit": lambda: ElasticHorizon(min_successes=3, estimator="product-limit"),
    "elastic-count-truncated": lambda: ElasticHorizon(min_successes=3, count_truncated=True),
    "elastic-cold-growth": lambda: ElasticHorizon(min_successes=9, cold_growth=1.5),
    "probed": lambda: ProbedHorizon(ElasticHorizon(min_successes=3), probe_k=50, probe_fraction=0.3),
    "keyed": lambda: KeyedHorizon(quick_elastic, "level"),
    "shared-elastic": lambda: SharedHorizon(ElasticHorizon(min_successes=3)),
    "shared-linear": lambda: SharedHorizon(LinearHorizon(10, 50, 0.4)),
}


@pytest.fixture(params=MAKERS)
def make(request):
    made = []

    def make():
        made.append(MAKERS[request.param]())
        return made[-1]

    yield make
    for controller in made:
        if isinstance(controller, SharedHorizon):
            controller.close()


def live(controller, updates, first=0):
    """Some updates with some outcomes each. Returns K after each, and the K of two episodes."""
    seen = []
    for update in range(first, first + updates):
        for i in range(2):
            success = (update + i) % 3 > 0
            length = 5 + (7 * update + i) % 40
            controller.record(EpisodeOutcome(length, 50 - i, success, not success, f"task-{i}", {"level": i}))
        controller.update()
        seen += [
            controller.horizon,
            episode_horizon(controller, {"level": 1}, update),
            episode_horizon(controller, {"level": 2}, None),
        ]
    return seen


def test_every_public_controller_is_in_this_suite():
    public = {
        name
        for name in eh_gym.horizon.__all__
        if isinstance(value := getattr(eh_gym.horizon, name), type) and hasattr(value, "load_state_dict")
    }
    assert public - {"HorizonController"} == {type(make()).__name__ for make in MAKERS.values()}


def test_all_is_complete():
    defined = {
        name
        for name, value in vars(eh_gym.horizon).items()
        if inspect.isclass(value) and value.__module__.startswith("eh_gym.horizon")
    }
    assert sorted(defined) == sorted(eh_gym.horizon.__all__)


def test_it_is_a_controller(make):
    assert isinstance(make(), HorizonController)


def test_k_is_a_whole_number_of_steps_at_all_times(make):
    controller = make()
    for k in [controller.horizon, *live(controller, 30)]:
        assert type(k) is int
        assert k >= 1


def test_the_same_seed_and_info_have_the_same_k_until_the_next_update(make):
    controller = make()
    live(controller, 6)
    ks = [[episode_horizon(controller, {"level": i}, seed) for seed in range(50)] for i in range(3)]
    assert ks == [[episode_horizon(controller, {"level": i}, seed) for seed in range(50)] for i in range(3)]
    assert all(type(k) is int and k >= 1 for row in ks for k in row)


def test_recording_alone_moves_nothing(make):
    controller = make()
    k = controller.horizon
    for _ in range(200):
        controller.record(EpisodeOutcome(40, 50, True, info={"level": 1}))
    assert controller.horizon == k


def test_update_returns_finite_or_nan_floats_named_horizon(make):
    controller = make()
    for _ in range(5):
        metrics = controller.update()
        live(controller, 1)
        assert metrics["horizon/k"] >= 1
        for name, value in metrics.items():
            assert name.startswith("horizon/")
            assert type(value) is float
            assert not math.isinf(value)
    assert controller.update()["horizon/k"] == controller.horizon


def test_the_same_life_gives_the_same_k(make):
    assert live(make(), 20) == live(make(), 20)


@pytest.mark.parametrize("past", [0, 1, 7])
def test_a_state_through_json_has_the_same_future(make, past):
    first, second = make(), make()
    live(first, past)
    live(second, 2, first=100)  # a past that loading must undo
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert second.horizon == first.horizon
    assert live(first, 12, past) == live(second, 12, past)
    assert first.state_dict() == second.state_dict()


def test_a_saved_state_stays_as_it_was(make):
    controller = make()
    live(controller, 4)
    state = controller.state_dict()
    text = json.dumps(state)
    live(controller, 4)
    assert json.dumps(state) == text
    controller.load_state_dict(state)
    live(controller, 4)
    assert json.dumps(state) == text


@pytest.mark.parametrize("other", MAKERS)
def test_the_state_of_another_controller_is_refused_and_changes_nothing(make, other):
    controller, foreign = make(), MAKERS[other]()
    state = foreign.state_dict()
    if isinstance(foreign, SharedHorizon):
        foreign.close()
    before = controller.state_dict()
    if (state["kind"], state["settings"]) == (before["kind"], before["settings"]):
        controller.load_state_dict(state)  # shared or not, the state is the same
        return
    with pytest.raises(StateError, match=r"build (the controller that was saved|it with the saved settings)"):
        controller.load_state_dict(state)
    assert controller.state_dict() == before


def test_a_cut_state_is_refused(make):
    controller = make()
    state = controller.state_dict()
    for key in state:
        with pytest.raises(StateError):
            controller.load_state_dict({k: v for k, v in state.items() if k != key})
    for wrong in ({}, [], None, "state"):
        with pytest.raises(StateError):
            controller.load_state_dict(wrong)


def test_a_pickled_one_goes_on_from_here(make):
    controller = make()
    live(controller, 5)
    copied = pickle.loads(pickle.dumps(controller))
    assert copied.horizon == controller.horizon
    if isinstance(controller, SharedHorizon):  # its copy is another end of the same controller
        copied.record(EpisodeOutcome(33, 50, True, info={"level": 1}))
        live(controller, 5, 5)
        assert copied.horizon == controller.horizon
    else:
        assert live(copied, 12, 5) == live(controller, 12, 5)
        assert copied.state_dict() == controller.state_dict()


def test_threads_may_call_everything_at_once(make):
    controller, errors = make(), []
    start = threading.Barrier(6)

    def work():
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
    assert errors == []
    if "updates" in controller.state_dict():
        assert controller.state_dict()["updates"] == 6 * 20 * 5
    assert controller.horizon >= 1


def test_its_repr_says_what_it_is(make):
    controller = make()
    assert repr(controller).startswith(type(controller).__name__ + "(")
