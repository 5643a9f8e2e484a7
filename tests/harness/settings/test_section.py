import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from eh_gym import ElasticHorizon, FixedHorizon, LinearHorizon
from eh_gym.errors import ConfigError
from eh_gym.horizon.make import HORIZONS
from harness import GRPOConfig, evaluate_policy
from harness.settings.evaluate import EvaluateConfig
from harness.settings.grpo import flat_settings
from harness.settings.horizon import HORIZON, NamedHorizon
from harness.settings.sampling import SAMPLERS, Sampling
from harness.settings.section import Section, changed, filled, flat, leaves, marks, python_names, table_of


@dataclass(frozen=True)
class Dice(Sampling):
    sampler: ClassVar[str] = f"{__name__}:Dice"
    implementation: ClassVar[str] = "dice:DiceSampler"
    sides: int = 6


class Still:
    horizon = 7

    def record(self, outcome): ...

    def update(self):
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


CHANGED = {
    "k0": 9,
    "kl_coef": 0.1,
    "eval_tasks": 3,
    "env_args": {"tasks": 4},
    "warm_start.episodes": 5,
    "out": Path("x"),
}


@pytest.mark.parametrize("recipe", ["paper", "quickstart"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        CHANGED,
        {"wrapper": "none"},
        {"wrapper": "tti", "stages": {0: 9, 20: 30}},
        {"wrapper": f"{__name__}:Still"},
        {"wrapper": "eh_gym.horizon:LinearHorizon", "delta": 0.5},
        {"sampler": "vllm-server", "url": "http://a:1", "max_context": 300},
        {"sampler": f"{__name__}:Dice", "sides": 9},
    ],
)
def test_settings_survive_their_table_and_its_json(recipe, values):
    config = changed(GRPOConfig.recipe(recipe), **values)
    table = json.loads(json.dumps(table_of(config)))
    again = filled(GRPOConfig(), table)
    assert again == config
    if "stages" not in values:  # whose keys JSON makes texts
        assert flat(config) == flat_settings(table) | {"out": config.out}
    assert {name: flat(config)[name] for name in values} == values | (
        {"wrapper": "linear"} if "delta" in values else {}  # the name of our own class
    )


def test_a_table_changes_what_it_has_at_every_depth_and_nothing_else():
    base = changed(GRPOConfig(), alpha=0.3)
    table = {"updates": 7, "horizon": {"elastic": {"k0": 12}, "linear": {"delta": 4}}, "loss": {"kl_coef": 1}}
    made = filled(base, table)
    assert made == replace(base, updates=7, horizon=made.horizon, loss=replace(base.loss, kl_coef=1.0))
    assert table_of(made.horizon) == table_of(ElasticHorizon(k0=12, alpha=0.3))
    other = filled(base, table | {"horizon": {"wrapper": "linear", **table["horizon"]}})
    assert table_of(other.horizon) == table_of(LinearHorizon(delta=4))
    assert filled(made, {}) == made


def test_flat_names_are_unique_whatever_is_chosen_of_what_the_help_names():
    assert f"What sets K: {', '.join(HORIZONS)}, or " in HORIZON.text
    for wrapper in HORIZONS:
        for sampler in SAMPLERS:
            config = changed(GRPOConfig(), wrapper=wrapper, sampler=sampler)
            names = [one.name for one in leaves(config)]
            assert len(names) == len(set(names))
            assert (config.wrapper, config.sampling.sampler) == (wrapper, sampler)


def descendants(kind):
    return [one for child in kind.__subclasses__() for one in (child, *descendants(child))]


def test_every_setting_says_what_it_changes():
    train, evaluate = marks(GRPOConfig), marks(EvaluateConfig)
    sections = [kind for kind in descendants(Section) if kind.__module__.startswith("harness.settings.")]
    assert [kind for kind in sections if not hasattr(kind, "changes")] == []
    assert {*train, "resume"} == {*python_names(GRPOConfig())}
    assert {*flat(EvaluateConfig())} <= {*evaluate}


def test_a_change_of_class_keeps_nothing_of_the_other_one():
    config = changed(GRPOConfig(), k0=20, alpha=0.5)
    assert changed(config, wrapper="elastic").horizon.alpha == 0.5
    fixed = changed(config, wrapper="fixed").horizon
    assert isinstance(fixed, FixedHorizon)
    assert fixed.k0 == FixedHorizon().k0
    with pytest.raises(TypeError, match="no setting 'alpha'"):
        changed(config, wrapper="fixed", alpha=0.3)


UNKNOWN = [
    (lambda: GRPOConfig(loss={"kl_coeff": 1}), "loss.kl_coeff; did you mean loss.kl_coef?"),
    (lambda: GRPOConfig.recipe("paper", lss={"kl_coef": 1}), "no setting lss; did you mean loss?"),
    (lambda: GRPOConfig(horizon={"elastc": {"k0": 3}}), "did you mean horizon.elastic?"),
    (lambda: GRPOConfig(horizon={"elastic": {"k00": 3}}), "did you mean horizon.elastic.k0?"),
    (lambda: changed(GRPOConfig(), eval_task=8), "no setting 'eval_task'; did you mean eval_tasks?"),
    (lambda: evaluate_policy("expert", task=8), "'task'; did you mean tasks?"),
]


@pytest.mark.parametrize(("make", "said"), UNKNOWN, ids=[said for _, said in UNKNOWN])
def test_an_unknown_name_has_a_correction_at_every_depth(make, said):
    with pytest.raises((TypeError, ConfigError)) as error:
        make()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"loss": 3}, "loss must be a table, [loss], got 3"),
        ({"horizon": {"k0": 3}}, "no setting horizon.k0"),
        ({"horizon": {"fixed": {"k0": 0}}}, "k0 must be"),  # though it is not chosen
        (
            {"optimizer": {"learning_rate": -1.0}},
            "learning_rate must be a number >= 0, got -1.0; change --learning-rate",
        ),
        ({"evaluation": {"tasks": -1}}, "eval_tasks must be a whole number >= 0, got -1; change --eval-tasks"),
        ({"updates": "3"}, "updates must be a whole number >= 1, got '3'; change --updates"),
    ],
)
def test_a_wrong_value_in_a_table_is_named(table, said):
    with pytest.raises(ConfigError) as error:
        filled(GRPOConfig(), table)
    assert said in str(error.value)


@pytest.mark.parametrize("horizon", [3, "elastic", Still(), ElasticHorizon])
def test_a_horizon_is_a_dataclass_with_a_controller_s_methods(horizon):
    with pytest.raises(ConfigError, match=r"horizon must be a controller.*train\(controller=...\)"):
        GRPOConfig(horizon=horizon)
    assert GRPOConfig(horizon=NamedHorizon(f"{__name__}:Still")).wrapper == f"{__name__}:Still"


def test_numpy_s_numbers_become_python_s_and_a_text_a_path():
    config = GRPOConfig(updates=np.int64(3), out="x")
    assert (type(config.updates), config.out) == (int, Path("x"))


@dataclass
class _Counting:
    k: int = 7
    seen: list[int] = field(default_factory=list, init=False)


def test_what_a_controller_counts_is_no_setting():
    counting = _Counting(3)
    counting.seen.append(1)
    assert table_of(counting) == flat(counting) == {"k": 3}
    assert filled(counting, {"k": 4}).seen == []
    with pytest.raises(ConfigError, match="no setting seen"):
        filled(counting, {"seen": []})


@dataclass
class _Needy(FixedHorizon):
    start: int = field(kw_only=True)


def test_a_horizon_of_one_s_own_needs_defaults():
    with pytest.raises(ConfigError, match=r"test_section:_Needy can't be made.*'start'.*give its fields defaults"):
        changed(GRPOConfig(), wrapper=f"{__name__}:_Needy")
