"""The environments' contract finds what is wrong with an environment, and says it; a right one passes every test."""

import re
import textwrap

import gymnasium as gym
import pytest
from child import python

import eh_gym
from eh_gym.errors import UserCodeError
from eh_gym.testing import ExpertEnvContract
from envs.cabinet.env import CabinetEnv


class Silent(CabinetEnv):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return None if observation == "error" else observation, reward, terminated, truncated, info


class Impatient(CabinetEnv):
    def step(self, action):
        *rest, _, info = super().step(action)
        return *rest, not rest[2], info


class Generous(CabinetEnv):
    def step(self, action):
        *_, info = super().step("list()")
        return "right", 1.0, True, False, {**info, "success": True}


class Stubborn(CabinetEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class Trusting(CabinetEnv):
    def reset(self, *, seed=None, options=None):
        known = (options or {}).get("task_id") in self.task_ids
        return super().reset(seed=seed, options=options if known else None)


class Stale(CabinetEnv):
    kept = {"malformed": True}  # noqa: RUF012 - the fault

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, self.kept if info == {"malformed": True} else info


class OneForAll(CabinetEnv):
    drawers = {}  # noqa: RUF012 - the fault

    @property
    def _open(self):
        return self.drawers.get("open")

    @_open.setter
    def _open(self, value):
        self.drawers["open"] = value


class Amateur(CabinetEnv):
    def expert(self):
        action = super().expert()
        return "submit(00)" if action.startswith("submit") else action


class Roundabout(CabinetEnv):
    asked = 0

    def expert(self):
        self.asked += 1
        return "list()" if self.asked % 2 else super().expert()


class Nameless(CabinetEnv):
    def reset(self, **given):
        answer = super().reset(**given)
        self.task_ids = ()
        return answer


class Ascii(CabinetEnv):
    observation_space = property(lambda self: gym.spaces.Text(999), lambda self, space: None)


MALFORMED = "test_malformed_actions_are_answered_and_never_raise"
EXPERT = "test_the_expert_solves_its_tasks"
FAULTS = [
    (Silent, MALFORMED, "observation must be a str, got None"),
    (Impatient, MALFORMED, "truncated is for ElasticTimeLimit"),
    (Generous, MALFORMED, "'' was a success"),
    (Stubborn, "test_the_task_id_wins_over_the_seed", "asked for task 'dev-000000'"),
    (Trusting, "test_an_unknown_task_is_refused", "'no-such-task'; raise .*ConfigError"),
    (Nameless, "test_reset_says_what_the_task_is", "no task_ids; add"),
    (Ascii, "test_reset_says_what_the_task_is", r"is not in Text.*; make the space an eh_gym\.UnicodeText"),
    (Stale, "test_infos_are_fresh", "new dict"),
    (OneForAll, "test_a_masked_reset_changes_its_own_slots_only", r"slot \d went on"),
    (Amateur, EXPERT, "failed at 'dev-000000'"),
    (Roundabout, EXPERT, r"took \d+ steps; its optimal_steps are \d+"),
]


def contract_of(build, base=ExpertEnvContract):
    class Tests(base):
        def make(self):
            return build()

    tests = Tests()
    return {name: getattr(tests, name) for name in dir(tests) if name.startswith("test_")}


@pytest.fixture(autouse=True)
def _chance():
    OneForAll.drawers.clear()
    Stale.kept = {"malformed": True}


@pytest.mark.parametrize(("faulty", "name", "message"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_found_and_named(faulty, name, message):
    with pytest.raises((AssertionError, UserCodeError), match=message):
        contract_of(lambda: faulty(split="dev"))[name]()


def test_a_limit_in_the_registration_is_found():
    tests = contract_of(lambda: gym.make("EH-Cabinet-v0", max_episode_steps=9))
    with pytest.raises(AssertionError, match="max_episode_steps is 9"):
        tests["test_has_no_step_limit_of_its_own"]()


def test_it_is_imported_without_pytest():
    code = "import sys; sys.modules['pytest'] = None; import eh_gym.testing; assert 'torch' not in sys.modules"
    python("-c", code)


def test_pytest_runs_it_as_the_docstring_says(tmp_path):
    file = tmp_path / "test_mine.py"
    example = textwrap.dedent(eh_gym.testing.__doc__.split("::\n\n")[1].split("\n\nFor pytest")[0])
    example = example.replace("MyEnv-v0", "EH-Cabinet-v0").replace("MyController(", "ElasticHorizon(")
    file.write_text(f"from eh_gym import ElasticHorizon\n{example}\n")
    said = python("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", file)
    names = [*contract_of(CabinetEnv), *(n for n in dir(eh_gym.testing.ControllerContract) if n.startswith("test_"))]
    assert re.search(rf"\n{len(names)} passed", said), said
