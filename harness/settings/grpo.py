"""The settings of a training run. The defaults are the paper's (Table "Complete hyperparameter settings")."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from eh_gym import ElasticHorizon
from eh_gym.errors import ConfigError, StateError
from eh_gym.ranges import Range
from harness.settings.environment import Environment
from harness.settings.evaluation import Evaluation
from harness.settings.horizon import HORIZON, Horizon
from harness.settings.loss import Loss
from harness.settings.model import Model
from harness.settings.optimizer import Optimizer
from harness.settings.recipe import read_recipe, recipe_file
from harness.settings.rollout import Rollout
from harness.settings.run import Run
from harness.settings.sampling import SAMPLING, Sampling, TransformersSampling
from harness.settings.section import FIRST, Changes, Section, choice_of, filled, flat, table_of
from harness.settings.warm_start import WarmStart

_FORMAT = 2  # of config.json; the first one was flat

P = ParamSpec("P")
C = TypeVar("C")


@dataclass(frozen=True)
class GRPOConfig(Section):
    """Trains an agent with GRPO on a Gymnasium text environment, under a horizon that is fixed, scheduled or elastic.

    The settings of each part are a section. The defaults are the paper's, for a model that `model` names. `recipe`
    begins with those of a TOML file instead.

    Raises:
        ConfigError: A setting is out of its range, or does not fit another one.
        TypeError: There is no such setting.

    >>> config = GRPOConfig.recipe("quickstart", horizon=ElasticHorizon(k0=12), updates=20)
    >>> config.horizon.k0, config.model.model, config.optimizer.learning_rate, config.loss.clip_high
    (12, 'tiny', 0.0007, 0.2)
    """

    changes = Changes.RESULT

    updates: Annotated[int, Range(1), FIRST] = 200
    """The number of policy updates."""
    tasks_per_update: Annotated[int, Range(1), FIRST] = 16
    """The number of tasks in one update."""
    group_size: Annotated[int, Range(2), FIRST] = 8
    """The number of episodes per task (G)."""
    max_staleness: Annotated[int, Range(0)] = 0
    """How many updates ahead of its own an episode may begin. 0: sampling and training take turns. With more, episodes
    play while the policy is trained, and go on under the new weights."""
    seed: Annotated[int, Range(0), Changes.DRAWS, FIRST] = 0
    """The seed of everything random: a tiny model's weights, the tasks, every token."""
    out: Annotated[Path | None, Changes.SETUP, FIRST] = None
    """A folder for the run, which holds no other yet. By default runs/ENV-WRAPPER-seedSEED, for a sweep runs/sweep."""
    environment: Environment = field(default_factory=Environment)
    model: Model = field(default_factory=Model)
    horizon: Horizon = field(default_factory=ElasticHorizon, metadata={"choice": HORIZON})
    horizon_key: str = ""
    """Keep a K for each value of this key in the info of reset, such as category."""
    rollout: Rollout = field(default_factory=Rollout)
    sampling: Annotated[Sampling, Changes.DRAWS] = field(
        default_factory=TransformersSampling, metadata={"choice": SAMPLING}
    )
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    warm_start: WarmStart = field(default_factory=WarmStart)
    run: Run = field(default_factory=Run)

    @classmethod
    def recipe(cls: Callable[P, C], name: str | Path, /, *_: P.args, **changes: P.kwargs) -> C:
        """Returns the settings of a recipe, with changes.

        Args:
            name: A recipe of this project, such as "quickstart", or a TOML file. "paper" has the fields' own defaults.
            **changes: Other values of the fields. A section replaces the recipe's; a mapping changes the settings in it
                alone.

        >>> config = GRPOConfig.recipe("quickstart", loss={"kl_coef": 0.1})
        >>> config.loss.kl_coef, config.loss.truncated_weight
        (0.1, 0.5)
        """
        tables = {key: value for key, value in changes.items() if isinstance(value, Mapping)}
        chosen = {flag: table[flag] for table in tables.values() for flag in ("wrapper", "sampler") if flag in table}
        config = filled(from_recipe(name, chosen), tables)
        return dataclasses.replace(config, **{k: v for k, v in changes.items() if k not in tables})  # type: ignore[return-value, arg-type]

    def __eq__(self, other: object) -> bool:  # two controllers are never equal, but their tables may be
        return isinstance(other, GRPOConfig) and table_of(self) == table_of(other)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.environment.has_splits:
            object.__setattr__(self, "evaluation", dataclasses.replace(self.evaluation, split="all"))
        self._check_parts()
        self._check_staleness()

    def _check_parts(self) -> None:
        if isinstance(self.environment.tasks, int):
            raise ConfigError(
                f"--tasks {self.environment.tasks} is for harness.evaluate; a run trains on all tasks of its split"
            )
        if self.environment.agent and self.model.model == "tiny":
            raise ConfigError(
                "--agent needs --model, a folder or hub id: the tiny model is made for one of our environments"
            )
        if self.rollout.temperature == 0:
            raise ConfigError("temperature must be > 0 in training, got 0; greedy episodes of a task are all alike")
        if self.optimizer.compile == "on" and self.sampling.runs_policy:
            raise ConfigError(
                "--compile on needs --sampler vllm or vllm-server, because the transformers sampler runs the same "
                "layers token by token; leave it out"
            )
        k0 = getattr(self.horizon, "k0", None)
        if self.evaluation.horizon is None and isinstance(k0, int) and k0 > self.evaluation_horizon:
            raise ConfigError(
                f"k0 must be <= the K of the evaluation ({self.evaluation_horizon}), got {k0}; raise --eval-horizon, "
                "too"
            )
        if self.evaluation.every and not self.evaluation.tasks:
            raise ConfigError(f"eval_every ({self.evaluation.every}) needs held-out tasks; raise --eval-tasks")

    def _check_staleness(self) -> None:
        if not self.max_staleness:
            return
        if self.rollout.rollout == "lockstep":
            raise ConfigError(
                f"--max-staleness {self.max_staleness} needs --rollout streaming, because episodes play while the "
                "policy is trained; add it, or leave --max-staleness out"
            )
        if self.optimizer.offload_optimizer:
            raise ConfigError(
                f"--offload-optimizer needs --max-staleness 0, because sampling and training take turns only then, got "
                f"{self.max_staleness}; leave one of them out"
            )
        if self.evaluation.every:
            raise ConfigError(
                "eval_every needs max_staleness 0, because the sampler is busy with later updates; "
                "drop one of --eval-every and --max-staleness"
            )

    def check_ranks(self) -> None:
        if self.sampling.shares_gpu and self.max_staleness:
            raise ConfigError(
                "with torchrun an engine and a rank take turns on a GPU, and cannot work at the same time; leave out "
                "--max-staleness, or start vLLM servers on other GPUs and give --sampler vllm-server --url"
            )
        if self.environment.env_workers == "ray" and not self.environment.ray_address:
            raise ConfigError(
                "with torchrun, --env-workers ray needs a cluster that all ranks share; run `ray start --head` and "
                "give --ray-address auto"
            )

    @property
    def held_out(self) -> bool:
        """Whether the evaluations have a split of their own. Environments train on "train" if no split is given."""
        return (self.environment.split or "train") not in (self.evaluation.split, "all")

    @property
    def evaluation_horizon(self) -> int:
        return self.evaluation.horizon or int(getattr(self.horizon, "k_max", 50))

    @property
    def wrapper(self) -> str:
        return HORIZON.name_of(self.horizon)

    @property
    def episodes_per_update(self) -> int:
        return self.tasks_per_update * self.group_size

    def slots_of_rank(self, ranks: int) -> int:
        """The number of environments that each of `ranks` processes plays at once, in training and in evaluations."""
        most = self.episodes_per_update
        return -(-min(self.rollout.slots or most, most) // ranks)

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **table_of(self)}, indent=2)

    def public(self) -> dict[str, Any]:
        """Returns the settings by the names of their flags, without this machine's folders."""
        shown = {name: str(value) if isinstance(value, Path) else value for name, value in flat(self).items()}
        model = Path(self.model.model)
        return {k: v for k, v in shown.items() if k not in ("out", "tasks")} | {
            "model": model.name if model.is_dir() else self.model.model,
            "env": re.sub(r"(^|,)/[^,]*/", r"\1", self.environment.env),
        }

    @staticmethod
    def from_json(text: str) -> GRPOConfig:
        """Reads the settings of an earlier run.

        Raises:
            StateError: The text is not JSON, or it comes from a version with other settings.
        """
        try:
            saved = {**json.loads(text)}
            if (version := saved.pop("format", 1)) != _FORMAT:
                raise ValueError(f"format {version}, and this version has {_FORMAT}")
            if "gradient_checkpointing" in (optimizer := saved.get("optimizer", {})):  # now one setting
                on, kept = optimizer.pop("gradient_checkpointing"), optimizer.pop("keep_attention", False)
                optimizer["recompute"] = ("fit" if kept else "all") if on else "none"
            return filled(GRPOConfig(), saved)
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise StateError(f"these are not this version's settings: {error}") from error


def from_recipe(name: str | Path, chosen: Mapping[str, str] | None = None) -> GRPOConfig:
    """Returns the settings of a recipe.

    Args:
        name: See `GRPOConfig.recipe`.
        chosen: Another ``wrapper`` or ``sampler`` than the recipe's. The recipe may have a table for it.
    """
    table = dict(read_recipe(name))
    for part in dataclasses.fields(GRPOConfig):
        if (choice := choice_of(part)) and (wanted := (chosen or {}).get(choice.flag)):
            choice.named(wanted)  # a wrong name is not the recipe's mistake
            table[part.name] = {**table.get(part.name, {}), choice.flag: wanted}
    try:
        return filled(GRPOConfig(), table)
    except ConfigError as error:
        raise ConfigError(f"{recipe_file(name)}: {error}") from error


def flat_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a ``config.json`` by the names of their flags, unchecked: also those of an earlier
    version, with the defaults of what it lacks.

    >>> flat_settings({"updates": 3, "horizon": {"wrapper": "fixed", "fixed": {"k0": 9}}})
    {'updates': 3, 'wrapper': 'fixed', 'k0': 9}
    """
    parts = {part.name: part for part in dataclasses.fields(GRPOConfig)}
    by_flag: dict[str, Any] = {}
    for name, value in saved.items():
        choice, now = choice_of(parts[name]) if name in parts else None, getattr(_DEFAULT, name, None)
        if choice and isinstance(value, Mapping):
            chosen = value.get(choice.flag)
            by_flag |= {choice.flag: chosen, **value.get(chosen, {})}
        elif isinstance(now, Section) and isinstance(value, Mapping):
            by_flag |= {now.prefix + inner: leaf for inner, leaf in {**table_of(now), **value}.items()}
        elif name != "format":
            by_flag[name] = value
    if by_flag.get("agent_sampling") == "run":  # the same in training, once the default
        by_flag["agent_sampling"] = "auto"
    return by_flag


_DEFAULT = GRPOConfig()
