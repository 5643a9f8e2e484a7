"""Flags about the horizon K, and the controller that they describe."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Literal

import eh_gym
from eh_gym import (
    ElasticHorizon,
    ElasticTokenBudget,
    FixedHorizon,
    HorizonController,
    KeyedHorizon,
    LinearHorizon,
    MultiplicativeHorizon,
    ProgressiveHorizon,
    StagedHorizon,
)
from eh_gym.errors import ConfigError

__all__ = ["HorizonFlags", "make_controller"]

_NAMES = ("elastic", "fixed", "linear", "multiplicative", "progressive", "tti", "tokens", "none")


@dataclass(frozen=True)
class HorizonFlags:
    """How many steps an episode may take, and how this is decided."""

    wrapper: str = "elastic"
    """What sets K: the successes (elastic), one number (fixed), a schedule (linear, multiplicative, tti), the share of
    successes (progressive), nothing (none), or a controller of your own, MODULE:CLASS. With tokens, K is k_max, and a budget of
    tokens follows the successes."""
    wrapper_args: str = "{}"
    """With --wrapper MODULE:CLASS: what the class takes, as a JSON object, such as '{"k0": 5}'."""
    k0: int = 15
    """The horizon at the start, in steps. With --wrapper fixed it is the horizon of the whole run."""
    k_min: int = 5
    """The lower bound of the elastic horizon, in steps. For multiplicative it is the size of one stage."""
    k_max: int = 50
    """The upper bound of every horizon, in steps. Evaluations use it as their K."""
    alpha: float = 0.1
    """Elastic: the weight of the new target in the moving average of K."""
    delta: float = 10.0
    """Elastic: the headroom above the boundary, in steps."""
    buffer_size: int = 100
    """Elastic: the number of most recent successes that are remembered (N)."""
    min_successes: int = 20
    """Elastic: K does not move before this many successes were seen (N_min)."""
    statistic: Literal["mean", "p50", "p75", "p90", "p95", "max"] = "p90"
    """Elastic: the statistic of the successes' lengths that is the boundary."""
    rounding: Literal["floor", "nearest", "floor-state"] = "floor"
    """Elastic: how K is rounded. floor-state also stores the rounded K, as the paper's Algorithm 2 does; then K stalls."""
    cold_growth: float = 0.0
    """Elastic: the number of steps that K grows by in each update that still has fewer than min_successes."""
    horizon_key: str = ""
    """Elastic: keep one K per value of this key in the info of reset, such as category. Empty keeps one K for all tasks."""
    budget_hint: str = ""
    """A text that is appended to every observation, such as '[{left} of {horizon} steps left]'. Empty appends nothing."""
    token_budget: int = 2000
    """Tokens: the budget of an episode at the start, in tokens that are written and read after the first prompt."""
    token_min: int = 500
    """Tokens: the lower bound of the budget."""
    token_max: int = 8000
    """Tokens: the upper bound of the budget."""
    token_delta: float = 500.0
    """Tokens: the headroom above the statistic of the successes' tokens. The loop's other settings are those of elastic."""
    linear_start: int = 10
    """Linear: K at update 0, in steps."""
    linear_increment: float = 0.2
    """Linear: the number of steps that K grows by in each update."""
    stage_updates: int = 50
    """Multiplicative: the number of updates in a stage. K = k_min (t // stage_updates + 1)."""
    progress_threshold: float = 0.7
    """Progressive: K grows when this share of the episodes succeeds."""
    progress_step: int = 5
    """Progressive: the number of steps that K grows by."""
    progress_window: int = 100
    """Progressive: the number of most recent episodes, all at the present K, that the share is taken over."""
    tti_stages: str = "0:15,50:20,100:30,150:50"
    """TTI: the paper's table of stages, as UPDATE:K pairs with commas between them."""

    def stages(self) -> dict[int, int]:
        """`tti_stages` as a table from update to K."""
        try:
            pairs = [(int(u), int(k)) for u, k in (pair.split(":") for pair in self.tti_stages.split(","))]
        except ValueError as error:
            raise ConfigError(
                f"tti_stages must be UPDATE:K pairs such as 0:15,50:20, got {self.tti_stages!r}"
            ) from error
        if len(dict(pairs)) < len(pairs):
            raise ConfigError(f"tti_stages must name each update once, got {self.tti_stages!r}; leave one out")
        return dict(pairs)

    @property
    def wrapper_name(self) -> str:
        """`wrapper` without its module, for the names of folders."""
        return self.wrapper.rpartition(":")[2]

    def controller_args(self) -> dict[str, Any]:
        """`wrapper_args` as a dict."""
        try:
            args = json.loads(self.wrapper_args)
        except json.JSONDecodeError as error:
            raise ConfigError(f"wrapper_args is not JSON ({error}); write --wrapper-args '{{\"k0\": 5}}'") from error
        if not isinstance(args, dict):
            raise ConfigError(f"wrapper_args must be a JSON object, got {self.wrapper_args!r}")
        return args

    def check_horizon(self) -> None:
        """Raises ConfigError if the flags contradict each other or describe no controller."""
        if self.wrapper not in _NAMES and ":" not in self.wrapper:
            raise ConfigError(f"--wrapper must be one of {', '.join(_NAMES)}, or MODULE:CLASS, got {self.wrapper!r}")
        if self.wrapper in _NAMES and self.controller_args():
            raise ConfigError(
                f"--wrapper-args is for --wrapper MODULE:CLASS, got --wrapper {self.wrapper}; it has flags of its own"
            )
        for name in ("cold_growth", "horizon_key"):
            if self.wrapper != "elastic" and getattr(self, name) != getattr(HorizonFlags, name):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} is about the elastic horizon, got --wrapper {self.wrapper}; leave one out")
        if self.wrapper == "none" and self.budget_hint:
            raise ConfigError(
                "--budget-hint tells how many steps are left, and --wrapper none has no limit; leave one out"
            )
        if self.wrapper == "fixed" and self.k0 > self.k_max:
            raise ConfigError(
                f"k0 must be <= k_max ({self.k_max}), the K of the evaluation, got {self.k0}; raise --k-max, too"
            )
        self.stages()
        try:
            make_controller(self)
        except ConfigError as error:
            of = {
                "linear": "--linear-start (k_min), --k-max, --linear-increment (delta)",
                "tokens": "--token-budget (b0), --token-min (b_min), --token-max (b_max), --token-delta (delta)",
            }
            if self.wrapper not in of:
                raise
            raise ConfigError(f"{of[self.wrapper]}: {error}") from error


def make_controller(flags: HorizonFlags, *, by_environment: bool = False) -> HorizonController | None:
    """Makes the horizon controller that `wrapper` names; None for "none".

    Args:
        flags: The settings.
        by_environment: Whether a K that follows the episodes is kept for each of the run's environments, unless `horizon_key`
            names another kind.

    Raises:
        ConfigError: A setting is out of range, or the class of MODULE:CLASS can't be imported or made.
    """
    if flags.wrapper == "none":
        return None
    if flags.wrapper == "fixed":
        return FixedHorizon(flags.k0)
    if flags.wrapper == "linear":
        return LinearHorizon(flags.linear_start, flags.k_max, flags.linear_increment)
    if flags.wrapper == "multiplicative":
        return MultiplicativeHorizon(flags.k_min, flags.k_max, flags.stage_updates)
    key = flags.horizon_key or ("environment" if by_environment else "")
    if flags.wrapper == "progressive":
        make = functools.partial(
            ProgressiveHorizon,
            flags.k0,
            flags.k_max,
            flags.progress_step,
            flags.progress_threshold,
            flags.progress_window,
        )
        return KeyedHorizon(make, key) if key else make()
    if flags.wrapper == "tti":
        return StagedHorizon({update: min(k, flags.k_max) for update, k in flags.stages().items()})
    if flags.wrapper == "tokens":
        loop = {name: getattr(flags, name) for name in ("k_max", "alpha", "buffer_size", "min_successes", "statistic")}
        return ElasticTokenBudget(flags.token_budget, flags.token_min, flags.token_max, flags.token_delta, **loop)
    if flags.wrapper != "elastic":
        return eh_gym.make_controller(flags.wrapper, **flags.controller_args())
    paper = ("k0", "k_min", "k_max", "alpha", "delta", "buffer_size", "min_successes", "statistic", "rounding")
    settings = {name: getattr(flags, name) for name in (*paper, "cold_growth")}
    return KeyedHorizon(functools.partial(ElasticHorizon, **settings), key) if key else ElasticHorizon(**settings)
