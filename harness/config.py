"""The settings of a training run: one dataclass, from which the flags, the help and the saved config are made.

The class's own defaults are the paper's (Table "Complete hyperparameter settings"); `preset` gives those of the quick
start where the model is the tiny one, and reads a recipe. Left out: anything an environment or a controller checks itself.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eh_gym import (
    ElasticHorizon,
    FixedHorizon,
    HorizonController,
    KeyedHorizon,
    LinearHorizon,
    MultiplicativeHorizon,
    ProbedHorizon,
    StagedHorizon,
)
from eh_gym.errors import ConfigError, StateError
from harness.environment import read_env_args
from harness.lora import engine_rank
from harness.recipe import read_recipe, with_recipe
from harness.rollout import RolloutMode
from harness.sampling.make import SamplerSettings
from harness.update import LossSettings
from harness.warm_start import WarmStart

__all__ = ["GRPOConfig", "make_controller", "preset"]

_ANY = math.inf
_RANGES: dict[str, tuple[int, float]] = {
    **dict.fromkeys(
        ("updates", "tasks_per_update", "max_action_tokens", "minibatches", "tokens_per_microbatch"), (1, _ANY)
    ),
    **dict.fromkeys(("eval_rollouts", "eval_every_rollouts", "checkpoint_every"), (1, _ANY)),
    **dict.fromkeys(("threads", "slots", "env_threads", "environment_retries", "max_context", "lora_rank"), (0, _ANY)),
    **dict.fromkeys(("warmup_updates", "fixed_length", "eval_tasks", "eval_every", "log_episodes_every"), (0, _ANY)),
    **dict.fromkeys(("max_observation_tokens", "clip_high"), (0, _ANY)),
    **dict.fromkeys(("learning_rate", "weight_decay", "kl_coef"), (0, sys.float_info.max)),
    **dict.fromkeys(("final_lr_fraction", "clip_low"), (0, 1)),
    "adam_beta2": (0, 0.99999),
}
"""The least and the most that a setting may be; what is not one number of a range is checked by hand."""


@dataclass(frozen=True)
class GRPOConfig(SamplerSettings):
    """Trains an agent with GRPO on a Gymnasium text environment, under a horizon that is fixed, scheduled or elastic."""

    env: str = "EH-Cabinet-v0"
    """The environment's id."""
    env_args: str = "{}"
    """Further arguments of gym.make, as a JSON object: '{"categories": ["base"]}'."""
    split: str = ""
    """Tasks to train on, as the environment calls them; empty for its own default."""
    model: str = "tiny"
    """tiny (made on the spot), a Hugging Face folder, or a hub id."""
    wrapper: Literal["elastic", "fixed", "linear", "multiplicative", "tti", "none"] = "elastic"
    """Who chooses the horizon K: the agent's successes, one K, a schedule, the paper's stage table, or nobody."""
    seed: int = 0
    """Decides the initial weights (tiny), the tasks, and every sampled token."""
    run_dir: Path | None = None
    """Where the run is kept; by default runs/ENV-WRAPPER-seedSEED, numbered if taken. A folder given here must not hold a run."""
    resume: Path | None = None
    """Continue the run in this folder with its own settings; other flags are ignored."""
    recipe: Path | None = None
    """A TOML file of these settings, such as those in recipes/; flags override it."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation and of the sampler's weights; the optimizer's are float32 either way."""
    threads: int = 1
    """Torch threads; one is fastest for tiny models. 0 leaves torch's default."""

    updates: int = 200
    """Policy updates."""
    tasks_per_update: int = 16
    """Tasks in one update."""
    group_size: int = 8
    """Episodes per task (G)."""
    slots: int = 0
    """Environments stepped at once; 0 for as many as an update has episodes."""
    env_threads: int = 64
    """Threads that step environments; 0 steps them in turn, fastest where a step takes microseconds."""
    env_workers: Literal["local", "ray"] = "local"
    """Where environments live: on this machine, or in Ray actors on the nodes of a cluster."""
    ray_address: str = ""
    """The cluster that this machine has joined, auto or HOST:PORT; empty for a Ray of this run's own, on this machine."""
    ray_actor_slots: int = 16
    """Environments per actor."""
    ray_actor_cpus: float = 1.0
    """Cores that an actor asks of its node."""
    ray_timeout_s: float = 600.0
    """An actor that takes so long for one call is killed; more than the environment's own deadlines."""
    temperature: float = 1.0
    """Of the sampled actions."""
    max_action_tokens: int = 1024
    """The most tokens of one action."""
    max_observation_tokens: int = 0
    """A longer observation loses its middle; 0 keeps all."""

    rollout: RolloutMode = "streaming"
    """streaming: no episode waits for another's environment. lockstep: turn by turn together, the same to the last bit."""
    environment_retries: int = 2
    """How often an episode whose environment failed is begun again, before it is dropped."""
    async_steps: Literal[0, 1] = 0
    """1 samples the next update's episodes while the policy is trained, one update off-policy, with a copy of the weights."""
    tis_cap: float = 0.0
    """Weight tokens by min(trainer's / sampler's probability, this), >= 1; 0 for no weights."""

    learning_rate: float = 1e-6
    """AdamW's, after the warm-up."""
    warmup_updates: int = 0
    """Updates over which the learning rate rises from 0."""
    final_lr_fraction: float = 1.0
    """The learning rate falls linearly, towards this fraction of itself after the last update."""
    adam_beta2: float = 0.999
    """AdamW's second moment; its first is 0.9."""
    weight_decay: float = 0.01
    """AdamW's."""
    minibatches: int = 1
    """Optimizer steps per update."""
    tokens_per_microbatch: int = 16_384
    """Tokens in one forward pass, at least one whole episode; changes memory and speed, not the result."""
    packing: bool = True
    """Episodes one behind the other in a row, without padding, where the model can; off pads them to one length."""
    rank_timeout_s: float = 1800.0
    """With torchrun: a rank that has waited so long for another stops the run; more than the longest rollout takes."""
    lora_rank: int = 0
    """Train adapters of this rank beside the model's weights (LoRA), which stay as they are; 0 trains all weights."""
    lora_handover: Literal["merged", "adapters"] = "merged"
    """What vLLM gets after an update: weights with the adapters merged into them, or the adapters alone, which it applies."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time, and far less memory for long episodes."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""

    clip_low: float = 0.2
    """The probability ratio is clipped at 1 - clip_low."""
    clip_high: float = 0.2
    """The probability ratio is clipped at 1 + clip_high."""
    kl_coef: float = 0.0
    """Weight of the KL estimate to the initial policy."""
    aggregation: Literal["seq-mean", "token-mean", "fixed-length"] = "token-mean"
    """How token losses become one number."""
    fixed_length: int = 0
    """Tokens per episode that fixed-length divides by; 0 for k_max x max_action_tokens. Never moves with K."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation; off for the mean alone (Dr.GRPO)."""
    train_on_truncated: bool = True
    """Whether episodes stopped by K enter the loss; they count in their group's mean in any case."""

    k0: int = 15
    """The horizon at the start; of fixed, the horizon."""
    k_min: int = 5
    """Elastic's lower bound; the step of multiplicative."""
    k_max: int = 50
    """The upper bound of every schedule, and the K of the evaluation."""
    alpha: float = 0.1
    """Elastic's smoothing."""
    delta: float = 10.0
    """Elastic's headroom over the boundary, in steps."""
    buffer_size: int = 100
    """Elastic's last N successes."""
    min_successes: int = 20
    """Elastic keeps K until it has seen so many successes."""
    statistic: Literal["mean", "p50", "p75", "p90", "p95", "max"] = "p90"
    """What elastic takes for the boundary of the successes' lengths."""
    rounding: Literal["floor", "nearest", "floor-state"] = "floor"
    """How elastic makes K whole: floor of a real state (default), nearest, or Algorithm 2's floored state, which stalls."""
    estimator: Literal["observed", "product-limit"] = "observed"
    """product-limit undoes that a success longer than its K can't be seen, where episodes had different K (probes)."""
    cold_growth: float = 0.0
    """Steps that K grows by in an update while there are fewer than min_successes."""
    count_truncated: bool = False
    """Elastic remembers truncated episodes beside successes, so that K grows while many are stopped."""
    probe_fraction: float = 0.0
    """The share of episodes that elastic lets run to k_max, chosen by their seeds; use --estimator product-limit."""
    horizon_key: str = ""
    """Elastic keeps a K for each kind of task: the key of the reset's info that tells it, such as category; empty for one K."""
    budget_hint: str = ""
    """Appended to every observation, such as '[{left} of {horizon} steps left]'; empty for none."""
    linear_start: int = 10
    """K of the linear schedule at update 0."""
    linear_increment: float = 0.2
    """K the linear schedule adds per update."""
    stage_updates: int = 50
    """Updates per stage of multiplicative: K = k_min (t // stage_updates + 1)."""
    tti_stages: str = "0:15,50:20,100:30,150:50"
    """tti's table, UPDATE:K,…"""

    warm_start: WarmStart = field(default_factory=WarmStart)
    """Behaviour cloning before the first update."""
    eval_split: str = "test"
    """Held-out tasks for the evaluation before and after training."""
    eval_tasks: int = 128
    """How many of them; 0 for no evaluation."""
    eval_rollouts: int = 8
    """Sampled episodes per task (the k of mean@k and best@k)."""
    eval_every: int = 0
    """Updates between held-out evaluations during training, which go into the metrics; 0 for none."""
    eval_every_rollouts: int = 8
    """Sampled episodes per task in those."""
    checkpoint_every: int = 10
    """Updates between checkpoints."""
    keep_checkpoints: int = 2
    """How many are kept."""
    log_episodes_every: int = 1
    """Updates between those whose episodes are written out; 0 for none."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:  # NaN is not
                most = "" if high > 1 else f" and <= {high:g}"
                mend = "raise" if value < low else "lower" if value > high else "change"
                raise ConfigError(f"{name} must be >= {low}{most}, got {value}; {mend} --{name.replace('_', '-')}")
        if self.group_size < 2:
            raise ConfigError(
                f"group_size must be >= 2, got {self.group_size}: one episode has nothing to compare with"
            )
        if not 0 < self.temperature <= 2:  # what every sampler has
            raise ConfigError(f"temperature must be > 0 in training, and <= 2, got {self.temperature}")
        if self.lora_handover == "adapters":
            if not self.lora_rank or self.sampler == "transformers":
                raise ConfigError(
                    "--lora-handover adapters needs --lora-rank and --sampler vllm or vllm-server, got "
                    f"--lora-rank {self.lora_rank} and --sampler {self.sampler}; leave it out"
                )
            engine_rank(self.lora_rank)
        if not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm must be > 0, got {self.max_grad_norm}; inf clips nothing")
        if 0 < self.max_observation_tokens < 16:
            raise ConfigError(f"max_observation_tokens must be 0 (all) or >= 16, got {self.max_observation_tokens}")
        if self.tis_cap and not self.tis_cap >= 1:
            raise ConfigError(f"tis_cap must be 0 (off) or >= 1, got {self.tis_cap}; 2 is usual")
        if self.eval_every and not self.eval_tasks:
            raise ConfigError(f"eval_every ({self.eval_every}) needs held-out tasks; raise --eval-tasks")
        if self.eval_every and self.async_steps:
            raise ConfigError(
                "eval_every needs async_steps 0: with 1 the sampler holds the weights of the update before; "
                "drop one of --eval-every and --async-steps"
            )
        if self.keep_checkpoints < 1:
            raise ConfigError(f"keep_checkpoints must be >= 1, got {self.keep_checkpoints}; a run must be resumable")
        for name in ("estimator", "cold_growth", "count_truncated", "probe_fraction", "horizon_key"):
            if self.wrapper != "elastic" and getattr(self, name) != getattr(GRPOConfig, name):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} is about the elastic horizon, got --wrapper {self.wrapper}; leave one out")
        for name in ("ray_address", "ray_actor_slots", "ray_actor_cpus", "ray_timeout_s"):
            if self.env_workers != "ray" and getattr(self, name) != getattr(GRPOConfig, name):
                raise ConfigError(f"--{name.replace('_', '-')} is for --env-workers ray, got --env-workers local")
        if self.ray_actor_slots < 1:
            raise ConfigError(f"ray_actor_slots must be >= 1, got {self.ray_actor_slots}; raise --ray-actor-slots")
        if self.wrapper == "fixed" and self.k0 > self.k_max:
            raise ConfigError(
                f"k0 must be <= k_max ({self.k_max}), the K of the evaluation, got {self.k0}; raise --k-max, too"
            )
        self.environment_args()
        self.stages()
        try:
            make_controller(self)
        except ConfigError as error:
            if self.wrapper != "linear":
                raise
            raise ConfigError(f"--linear-start (k_min), --k-max, --linear-increment (delta): {error}") from error
        self.check_sampler()

    def environment_args(self) -> dict[str, Any]:
        """`env_args` as a dict, with `split` if it is given."""
        args = read_env_args(self.env_args)
        return {**args, "split": self.split} if self.split else args

    def stages(self) -> dict[int, int]:
        """`tti_stages` as a table."""
        try:
            return {int(u): int(k) for u, k in (pair.split(":") for pair in self.tti_stages.split(","))}
        except ValueError as error:
            raise ConfigError(
                f"tti_stages must be UPDATE:K pairs such as 0:15,50:20, got {self.tti_stages!r}"
            ) from error

    def loss_settings(self) -> LossSettings:
        """What the policy update needs of these settings."""
        same = {f.name for f in dataclasses.fields(LossSettings)} - {"fixed_length"}
        fixed_length = self.fixed_length or self.k_max * self.max_action_tokens
        return LossSettings(fixed_length=fixed_length, **{name: getattr(self, name) for name in same})

    def learning_rate_at(self, update: int) -> float:
        """The learning rate of one update: linear warm-up times linear decay."""
        warm = min(1.0, (update + 1) / max(1, self.warmup_updates))
        return self.learning_rate * warm * (1.0 - (1.0 - self.final_lr_fraction) * update / self.updates)

    def to_json(self) -> str:
        """The settings as JSON, paths as text."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str)

    @staticmethod
    def from_json(text: str) -> GRPOConfig:
        """The settings of an earlier run.

        Raises:
            StateError: The text is none, or from a version with other settings.
        """
        try:
            values = json.loads(text)
            values["warm_start"] = WarmStart(**values["warm_start"])
            for name in ("run_dir", "resume", "recipe"):
                values[name] = Path(values[name]) if values.get(name) else None
            return GRPOConfig(**values)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"these are not this version's settings: {error!r}") from error


def preset(argv: Sequence[str], change: Callable[[GRPOConfig], GRPOConfig] = lambda c: c) -> GRPOConfig:
    """The defaults for a command line: the paper's with a real model, else the quick start's; over them the recipe's.

    Args:
        argv: The command line.
        change: Changes the defaults before the recipe does.

    >>> preset(["--model", "Qwen/Qwen2.5-7B-Instruct"]).learning_rate
    1e-06
    >>> preset([]).updates
    60
    """
    recipe = _flag(argv, "recipe", "")
    given = read_recipe(Path(recipe), GRPOConfig) if recipe else {}
    env, split, model = (
        _flag(argv, name, given.get(name, getattr(GRPOConfig, name))) for name in ("env", "split", "model")
    )
    config = change(_defaults(env, split, model))
    if not recipe:
        return config
    return dataclasses.replace(with_recipe(config, given, Path(recipe)), recipe=Path(recipe))


def _defaults(env: str, split: str, model: str) -> GRPOConfig:
    eval_split = GRPOConfig.eval_split
    if env.startswith("EH-AppWorld"):  # its test splits are for final scores; the mini world has one split
        eval_split = "mini" if split == "mini" else "dev"
    if model != "tiny":
        return GRPOConfig(threads=0, eval_split=eval_split)
    quick = GRPOConfig(
        eval_split=eval_split,
        updates=60,
        tasks_per_update=8,
        env_threads=0,
        rollout="lockstep",  # the same seed gives the same metrics
        max_action_tokens=6,
        learning_rate=7e-4,
        warmup_updates=5,
        final_lr_fraction=0.3,
        adam_beta2=0.99,
        weight_decay=0.0,
        minibatches=2,
        tokens_per_microbatch=6000,
        k0=10,
        linear_increment=40 / 60,
        stage_updates=6,
        tti_stages="0:15,15:20,30:30,45:50",
        eval_rollouts=1,
        warm_start=WarmStart(episodes=600, max_optimal_steps=9, polish_batches=100),
    )
    if not env.startswith(("EH-BFCL", "EH-AppWorld")):
        return quick
    bfcl = dataclasses.replace(
        quick,
        updates=10,
        tasks_per_update=8,
        env_threads=64,
        max_action_tokens=128,
        max_observation_tokens=96,
        learning_rate=1e-4,
        tokens_per_microbatch=8192,
        k0=15,
        tti_stages="0:15,3:20,5:30,7:50",
        linear_increment=4.0,
        stage_updates=1,
        eval_tasks=32,
        # Only the tasks with short transcripts are cloned, closely enough that whole episodes succeed.
        warm_start=WarmStart(
            episodes=480,
            max_tokens=400,
            loss_target=0.04,
            max_batches=600,
            batch_tokens=2048,
            polish_batches=150,
            polish_waste=0.0,
            polish_learning_rate=5e-4,
        ),
    )
    if env.startswith("EH-BFCL"):
        return bfcl
    return dataclasses.replace(
        bfcl,
        updates=5,
        tasks_per_update=4,
        max_action_tokens=160,
        tti_stages="0:15,1:20,2:30,3:50",
        eval_tasks=12,
        warm_start=dataclasses.replace(bfcl.warm_start, max_tokens=2048, batch_tokens=4096, max_batches=400),
    )


def make_controller(config: GRPOConfig) -> HorizonController | None:
    """The horizon controller that `wrapper` names; None for "none"."""
    if config.wrapper == "none":
        return None
    if config.wrapper == "fixed":
        return FixedHorizon(config.k0)
    if config.wrapper == "linear":
        return LinearHorizon(config.linear_start, config.k_max, config.linear_increment)
    if config.wrapper == "multiplicative":
        return MultiplicativeHorizon(config.k_min, config.k_max, config.stage_updates)
    if config.wrapper == "tti":
        return StagedHorizon(config.stages())
    paper = ("k0", "k_min", "k_max", "alpha", "delta", "buffer_size", "min_successes", "statistic", "rounding")
    settings = {name: getattr(config, name) for name in (*paper, "estimator", "cold_growth", "count_truncated")}
    controller: HorizonController = ElasticHorizon(**settings)
    if config.horizon_key:
        controller = KeyedHorizon(functools.partial(ElasticHorizon, **settings), config.horizon_key)
    return ProbedHorizon(controller, config.k_max, config.probe_fraction) if config.probe_fraction else controller


def _flag(argv: Sequence[str], name: str, default: str) -> str:
    """The value of one flag, before the flags are parsed."""
    for i, word in enumerate(argv):
        if word == f"--{name}" and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"--{name}="):
            return word.split("=", 1)[1]
    return default
