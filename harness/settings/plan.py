"""Flags of harness.plan: the GPUs, the lengths of episodes, and the speeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from harness.settings.grpo import GRPOConfig
from harness.settings.ranges import Range, check_settings

__all__ = ["Plan"]


@dataclass(frozen=True)
class GPUFlags:
    """The GPUs that the run would have."""

    gpus: Annotated[int, Range(1)] = 1
    """The number of GPUs of the trainer. Its state is divided among them (FSDP2)."""
    gpu_gb: Annotated[float, Range(0, above=True)] = 80.0
    """The memory of one GPU, in 10^9 bytes."""
    reserve_gb: Annotated[float, Range(0)] = 4.0
    """What the driver, kernels, CUDA graphs and fragments take of each GPU, in 10^9 bytes. This number is assumed."""


@dataclass(frozen=True)
class LengthsFlags:
    """How long episodes are."""

    horizon: Annotated[int, Range(0)] = 0
    """The horizon with which turns are counted. 0 takes k0 for a fixed horizon, and otherwise k_max. Memory is always counted for
    the longest episode."""
    success_rate: Annotated[float, Range(0, 1)] = 0.5
    """The share of episodes that succeed. The others are assumed to go on to K."""
    prompt_tokens: Annotated[int, Range(0)] = 0
    """The tokens of a task's prompt. 0 takes the environment's value from the table in docs/plan.md, as for the next two."""
    action_tokens: Annotated[int, Range(0)] = 0
    """The tokens that are written in one turn."""
    observation_tokens: Annotated[int, Range(0)] = 0
    """The tokens that are read in one turn."""


@dataclass(frozen=True)
class SpeedFlags:
    """How fast the GPUs are."""

    sample_tokens_per_s: Annotated[float, Range(0)] = 0.0
    """The sampled tokens per second of all GPUs together, as you measured them. 0 means not measured."""
    train_tokens_per_s: Annotated[float, Range(0)] = 0.0
    """The tokens per second of the policy update on all GPUs together, as you measured them. 0 means not measured."""
    mfu: Annotated[float, Range(0, 1)] = 0.0
    """The share of --peak-tflops that the update is assumed to reach if no --train-tokens-per-s is given. 0 assumes nothing."""
    peak_tflops: Annotated[float, Range(0, above=True)] = 989.0
    """The peak of one GPU in TFLOP/s. The default is that of an H100 or H200 in bfloat16, dense."""


@dataclass(frozen=True)
class StepFlags:
    """What the policy update is made of."""

    operations: bool = False
    """Also print the seconds of each operation of the update on an H100, on paper, and the MFU that follows; docs/plan.md."""
    episode_tokens: Annotated[int, Range(0)] = 0
    """With --operations: the tokens of every episode. 0 takes the plan's mean."""


@dataclass(frozen=True)
class RecipeFlags:
    """What is planned."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = ""
    """A TOML file with settings of harness.grpo, such as those in recipes/. Flags override it."""


@dataclass(frozen=True)
class Plan(StepFlags, SpeedFlags, LengthsFlags, GPUFlags, RecipeFlags):
    """Computes what a run of harness.grpo needs, and refuses one that cannot fit. It also takes every flag of harness.grpo."""

    train: GRPOConfig = field(default_factory=GRPOConfig)
    """The settings of the run."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.gpus > 1:
            self.train.check_ranks()

    @property
    def counted_k(self) -> int:
        """The K with which turns are counted, for work and hours."""
        return self.horizon or (self.train.k0 if self.train.wrapper == "fixed" else self.train.k_max)

    @property
    def trained_horizon(self) -> float:
        """The largest K that a training episode may have; inf without a limit."""
        if self.train.wrapper == "none":
            return math.inf
        return max(self.horizon, self.train.k0 if self.train.wrapper == "fixed" else self.train.k_max)

    @property
    def played_horizon(self) -> float:
        """The largest K that any episode may have, those of the evaluations included; inf without a limit."""
        evaluated = (self.train.k_max, *self.train.horizons()) if self.train.eval_tasks else ()
        return max([self.trained_horizon, *evaluated])
