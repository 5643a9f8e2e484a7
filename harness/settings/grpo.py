"""The settings of a training run: every flag of harness.grpo, its checks, and its form in config.json.

The fields' own defaults are the paper's (Table "Complete hyperparameter settings"); `harness.settings.defaults` has the others.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eh_gym.errors import ConfigError, StateError
from harness.settings.agent import AGENT_ENV, AgentFlags
from harness.settings.defaults import DECISIVE, defaults_for
from harness.settings.environment import EnvironmentFlags
from harness.settings.held_out import EvaluationFlags
from harness.settings.horizon import HorizonSettings
from harness.settings.loss import LossFlags
from harness.settings.model import ModelFlags
from harness.settings.optimizer import OptimizerFlags
from harness.settings.ranges import check_settings
from harness.settings.reasoning import ReasoningFlags
from harness.settings.recipe import read_recipe
from harness.settings.rollout import RolloutFlags
from harness.settings.run import RunFlags
from harness.settings.sampling import SamplingFlags
from harness.settings.warm_start import WarmStart
from harness.types.loss_settings import LossSettings
from harness.types.rules import Rules

__all__ = ["FIRST_FLAGS", "GRPOConfig", "paper_defaults"]

FIRST_FLAGS = (
    *("env", "env_args", "split", "agent", "tasks", "model", "dtype", "lora_rank", "wrapper", "k0", "k_min", "k_max"),
    *("alpha", "delta", "tasks_per_update", "group_size", "max_action_tokens", "sampler", "url", "learning_rate"),
    *("eval_tasks", "eval_rollouts", "updates", "seed", "out", "resume", "recipe", "device", "warm_start.episodes"),
)
"""The settings that ``--help`` shows; ``--help-all`` shows all."""


@dataclass(frozen=True)
class GRPOConfig(
    RunFlags,
    EvaluationFlags,
    OptimizerFlags,
    LossFlags,
    SamplingFlags,
    ReasoningFlags,
    RolloutFlags,
    HorizonSettings,
    ModelFlags,
    AgentFlags,
    EnvironmentFlags,
):
    """Trains an agent with GRPO on a Gymnasium text environment, under a horizon that is fixed, scheduled or elastic.

    A setting that is not given has the default that the command line gives it for this kind of run (`harness.settings.defaults`):
    the quick start's for the tiny model, a CPU's for SmolLM2, the recipes' with `lora_rank`, else the paper's. Texts may stand
    for paths. A mapping may stand for `warm_start`, and changes the settings in it alone. A `recipe` is read.

    Each base class is a group of flags, and a panel of ``--help``. `WarmStart` is the last one.

    Raises:
        ConfigError: A setting is out of its range, or does not fit another one.
        TypeError: There is no such setting.

    >>> config = GRPOConfig(wrapper="elastic", updates=20, warm_start={"episodes": 300})
    >>> config.model, config.learning_rate, config.warm_start.episodes, config.warm_start.max_optimal_steps
    ('tiny', 0.0007, 300, 9)
    """

    warm_start: WarmStart = field(default_factory=WarmStart)
    """Behaviour cloning before the first update."""

    if not TYPE_CHECKING:  # a type checker knows the constructor that a dataclass has

        def __init__(self, **given: Any) -> None:
            defaults = paper_defaults()
            if unknown := sorted(given.keys() - defaults):
                near = difflib.get_close_matches(unknown[0], defaults, n=1)
                raise TypeError(f"no setting {unknown[0]!r}{f'; did you mean {near[0]}?' if near else ''}")
            if not isinstance(given.get("env", ""), str):
                raise ConfigError(f"env: expected an id, got {given['env']!r}; a function belongs into train(env=...)")
            # Copied by `dataclasses.replace`, settings have the recipe's values already.
            copied = given.keys() == defaults.keys()
            recipe = read_recipe(Path(given["recipe"]), GRPOConfig) if given.get("recipe") and not copied else {}
            chosen = defaults | recipe | given
            defaults |= defaults_for(**{name: chosen[name] for name in DECISIVE})
            defaults["warm_start"] = dataclasses.replace(defaults["warm_start"], **recipe.pop("warm_start", {}))
            values = defaults | recipe | given
            if values["agent"] and values["env"] == defaults["env"]:
                values["env"] = AGENT_ENV
            for name in ("out", "resume", "recipe"):
                values[name] = Path(values[name]) if values[name] else None
            if isinstance(values["warm_start"], Mapping):
                values["warm_start"] = dataclasses.replace(defaults["warm_start"], **values["warm_start"])
            for name, value in values.items():
                object.__setattr__(self, name, value)
            self.__post_init__()

    def __post_init__(self) -> None:
        check_settings(self)
        self.check_environment()
        self.check_agent(
            self.env,
            model=self.model,
            tasks=self.tasks,
            local=self.env_workers == "local",
        )
        self.check_compile(self)
        self.check_horizon()
        self.check_rollout()
        self.check_reasoning()
        self.check_sampler()
        self.check_offload(self.max_staleness)
        self.check_evaluation(self.max_staleness)
        self.check_run()

    def check_ranks(self) -> None:
        """Checks the settings for a run under torchrun. No flag says that a run is one, so the constructor can't check them.

        Raises:
            ConfigError: A setting does not work under torchrun.
        """
        if self.sampler == "vllm" and self.max_staleness:
            raise ConfigError(
                "with torchrun an engine and a rank take turns on a GPU, and cannot work at the same time; leave out "
                "--max-staleness, or start vLLM servers on other GPUs and give --sampler vllm-server --url"
            )
        if self.env_workers == "ray" and not self.ray_address:
            raise ConfigError(
                "with torchrun, --env-workers ray needs a cluster that all ranks share; run `ray start --head` and give "
                "--ray-address auto"
            )

    @property
    def held_out(self) -> bool:
        """Whether the evaluations have a split of their own. Environments train on "train" if no split is given."""
        return (self.split or "train") not in (self.eval_split, "all")

    def rules(self) -> Rules:
        """Returns what holds for every episode of the run."""
        return Rules(self.temperature, self.max_action_tokens, self.rollout)

    def loss_settings(self) -> LossSettings:
        """Picks the settings that the policy update needs."""
        return LossSettings(**{f.name: getattr(self, f.name) for f in dataclasses.fields(LossSettings)})

    def learning_rate_at(self, update: int) -> float:
        """Returns the learning rate of one update: linear warm-up times linear decay."""
        warm = min(1.0, (update + 1) / max(1, self.warmup_updates))
        return self.learning_rate * warm * (1.0 - (1.0 - self.final_lr_fraction) * update / self.updates)

    def to_json(self) -> str:
        """Returns the settings as flat JSON, with paths as text."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str)

    def public(self) -> dict[str, Any]:
        """Returns the settings that may be shown elsewhere: those of `to_json` without this machine's folders."""
        shown: dict[str, Any] = json.loads(self.to_json())
        model = Path(self.model)
        return {k: v for k, v in shown.items() if k not in ("out", "resume", "recipe")} | {
            "model": model.name if model.is_dir() else self.model
        }

    @staticmethod
    def from_json(text: str) -> GRPOConfig:
        """Reads the settings of an earlier run.

        Raises:
            StateError: The text is not JSON, or it comes from a version with other settings, and they were used.
        """
        try:
            saved = {**json.loads(text)}
            read = GRPOConfig(**saved | {"recipe": None})  # whose file may have changed since
            return dataclasses.replace(read, recipe=saved.get("recipe"))
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"these are not this version's settings: {error!r}") from error


def paper_defaults() -> dict[str, Any]:
    """Returns the fields' own defaults, which a run has unless `harness.settings.defaults` has others for its model."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(GRPOConfig)
    }
