"""One contract for every controller: eh_gym.testing.ControllerContract, and what holds for the project's own alone."""

import dataclasses
import inspect
import json
import pickle

import numpy as np
import pytest
from glossary import check_glossary

import eh_gym.horizon
from eh_gym.horizon import (
    ElasticHorizon,
    EpisodeOutcome,
    FixedHorizon,
    KeyedHorizon,
    LinearHorizon,
    MultiplicativeHorizon,
    SharedHorizon,
    StagedHorizon,
    TaskHorizon,
)
from eh_gym.horizon.make import HORIZONS
from eh_gym.testing import ControllerContract
from eh_gym.testing.controller import live


def quick_elastic():
    return ElasticHorizon(min_successes=3)


MAKERS = HORIZONS | {
    "fixed": lambda: FixedHorizon(15),
    "linear": lambda: LinearHorizon(10, 50, 0.4),
    "multiplicative": lambda: MultiplicativeHorizon(10, 50, 3),
    "staged": lambda: StagedHorizon({0: 15, 3: 20, 6: 30, 9: 50}),
    "elastic": quick_elastic,
    "elastic-nearest": lambda: ElasticHorizon(min_successes=3, rounding="nearest"),
    "elastic-floor-state": lambda: ElasticHorizon(min_successes=3, rounding="floor-state"),
    "elastic-mean": lambda: ElasticHorizon(min_successes=3, statistic="mean"),
    "elastic-cold-growth": lambda: ElasticHorizon(min_successes=9, cold_growth=1.5),
    "task": lambda: TaskHorizon(min_episodes=2, alpha=0.5, free_every=3),
    "keyed": lambda: KeyedHorizon(quick_elastic, "task_id"),
    "shared-elastic": lambda: SharedHorizon(quick_elastic()),
    "shared-task": lambda: SharedHorizon(TaskHorizon(min_episodes=2)),
    "shared-keyed": lambda: SharedHorizon(KeyedHorizon(quick_elastic, "task_id")),
    "shared-linear": lambda: SharedHorizon(LinearHorizon(10, 50, 0.4)),
}


def test_every_public_controller_is_in_this_suite():
    public = {
        name
        for name in eh_gym.horizon.__all__
        if isinstance(value := getattr(eh_gym.horizon, name), type) and hasattr(value, "load_state_dict")
    }
    made = {base.__name__ for make in MAKERS.values() for base in type(make()).__mro__}
    assert public - {"HorizonController"} == made & public


class TestEveryController(ControllerContract):
    @pytest.fixture(autouse=True, params=MAKERS)
    def _maker(self, request):
        self.maker = MAKERS[request.param]

    def make(self):
        return self.maker()

    def test_the_glossary_has_its_metrics(self):
        controller = self._new()
        live(controller, 5)
        check_glossary(controller.update())

    @pytest.mark.parametrize("other", MAKERS)
    def test_the_state_of_another_controller_is_refused_and_the_message_says_what_to_build(self, other):
        foreign = MAKERS[other]()
        state = foreign.state_dict()
        if isinstance(foreign, SharedHorizon):
            foreign.close()
        own = self._new()
        if all(state[key] == own.state_dict()[key] for key in ("kind", "settings")):
            own.load_state_dict(state)  # shared or not, the state is the same
            return
        assert "build " in self.check_refuses(state)

    def test_a_pickled_one_goes_on_from_here(self):
        controller = self._new()
        if not isinstance(controller, SharedHorizon):
            super().test_a_pickled_one_goes_on_from_here()
            return
        live(controller, 5)  # its copy is another end of the same controller
        copied = pickle.loads(pickle.dumps(controller))
        assert copied.horizon == controller.horizon
        copied.record(EpisodeOutcome(33, 50, True, task_id="task-1", info={"task_id": "task-1"}))
        live(controller, 5, 5)
        assert copied.horizon == controller.horizon


@pytest.mark.parametrize("name", HORIZONS)
def test_a_name_has_a_class_of_its_own_whose_fields_say_all_arguments(name):
    kind = HORIZONS[name]
    assert list(HORIZONS.values()).count(kind) == 1
    assert [*inspect.signature(kind).parameters] == [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("maker", [name for name in MAKERS if "keyed" not in name and "shared" not in name])
def test_replace_gives_a_fresh_controller_with_the_same_arguments(maker):
    used, fresh = MAKERS[maker](), MAKERS[maker]().state_dict()
    live(used, 12)
    before = used.state_dict()
    again = dataclasses.replace(used)
    assert type(again) is type(used)
    assert again.state_dict() == fresh != before
    assert dataclasses.asdict(again) == dataclasses.asdict(used)
    live(again, 3)
    assert used.state_dict() == before  # they share nothing


def test_the_settings_are_json_whatever_numbers_made_them():
    for made in (
        ElasticHorizon(np.int64(9), alpha=np.float32(0.5), delta=3),
        StagedHorizon({np.int64(0): np.int32(7)}),
    ):
        assert json.loads(json.dumps(made.state_dict())) == made.state_dict()
    assert ElasticHorizon(delta=3).state_dict() == ElasticHorizon(delta=3.0).state_dict()


def test_a_subclass_may_have_attributes_of_unknown_types():
    class Shown(FixedHorizon):
        window: "a_plotting_library.Window"  # noqa: F821

    assert Shown(np.int64(3)).state_dict()["settings"] == {"k0": 3}


@dataclasses.dataclass(eq=False, repr=False)
class _Counting(FixedHorizon):
    seen: list[int] = dataclasses.field(default_factory=list, init=False)

    def record(self, outcome):
        self.seen.append(outcome.length)


def test_what_a_subclass_counts_in_fields_is_no_setting():
    counting = _Counting(9)
    counting.record(eh_gym.EpisodeOutcome(length=4, horizon=9, success=True))
    counting.update()
    assert counting.state_dict()["settings"] == {"k0": 9}
    _Counting(9).load_state_dict(counting.state_dict())
