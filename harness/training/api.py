"""Training from a Python program or a notebook: `train`, which `harness` exports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from rich.console import Console

from eh_gym import HorizonController
from eh_gym.answers import is_verdict
from eh_gym.checked import accepts
from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import check_controller
from envs.make import absolute, takes_split
from harness.records.metrics import read_metrics
from harness.records.run_folder import saved_config
from harness.rollout.environment import Given, name_of, spec_from
from harness.settings.environment import GIVEN
from harness.settings.extras import require_extras
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.horizon import NamedHorizon
from harness.settings.recipe import QUICKSTART
from harness.settings.section import advice_in_python, changed, python_names
from harness.training.command import RunRequest

if TYPE_CHECKING:
    from harness.training.loop import OnUpdate


@dataclass(frozen=True)
class TrainResult:
    """What a training run has left.

    Attributes:
        folder: The run's folder: its settings, metrics, episodes and checkpoints.
        model: The trained model, a Hugging Face folder. `evaluate_policy` and ``python -m harness.evaluate --policy``
            take it.
        evaluations: The results on held-out tasks before and after training, as in ``evaluation.json``: for example
            ``evaluations["after"]["sampled"]["mean_at_k"]``.
        history: One dict per update, as in ``metrics.jsonl``. ``pandas.DataFrame(result.history)`` makes a table of
            them. With torchrun only the first rank has it.
    """

    folder: Path
    model: Path
    evaluations: Mapping[str, Any] = field(repr=False)
    history: Sequence[Mapping[str, float]] = field(repr=False)


def train(
    config: GRPOConfig | None = None,
    *,
    resume: str | Path | None = None,
    updates: int | None = None,
    env: str | Callable[..., gym.Env[Any, Any]] | None = None,
    controller: HorizonController | None = None,
    on_update: OnUpdate | None = None,
    callbacks: Sequence[OnUpdate] = (),
    show: bool = True,
) -> TrainResult:
    """Trains an agent with GRPO, as ``python -m harness.grpo`` does with the same settings.

    An interrupt (Ctrl-C, a notebook's stop button, SIGTERM) saves the last whole update, and then raises a
    KeyboardInterrupt that says how to resume. A second one does not save. Python handles signals only in the main
    thread.

    Args:
        config: The settings; None for those of the recipe quickstart.
        resume: The folder of a run to continue, with its own settings. It is given in place of `config`. Environments
            and controllers that are objects must be given again.
        updates: With `resume`: the number of updates that the run is to have in all, in place of its own.
        env: In place of ``config.env``: an id of gymnasium, or a function that returns an environment. A function is
            called once for each environment, with ``split="train"`` and the like if it takes a split; if not, the run
            is evaluated on the tasks that it trains on. The settings stay those of `config`.
        controller: What sets the horizon, in place of ``config.horizon``: this object itself, of any class with the
            methods of `eh_gym.HorizonController`.
        on_update: Called after each update with its index, from 0, and its metrics. If it returns True, the run saves a
            checkpoint, evaluates, and ends; `resume` would continue it.
        callbacks: More functions like `on_update`. All are called; one that returns True ends the run.
        show: Print the plan, the progress and the result.

    Raises:
        ConfigError: A setting or an argument does not fit the environment, the model, the machine or the run that is
            resumed, or the folder holds a run.
        EHError: Another error for which there is a remedy, which its message names.

    Example:
        >>> from harness import GRPOConfig, train
        >>> result = train(GRPOConfig.recipe("quickstart"))  # doctest: +SKIP
        >>> result.evaluations["after"]["sampled"]["mean_at_k"]  # doctest: +SKIP
        0.84375
    """
    from harness.training.carry_out import carry_out  # torch takes seconds to import

    if config is not None and not isinstance(config, GRPOConfig):
        raise ConfigError(f"config must be a GRPOConfig, got {config!r}; write train(GRPOConfig(...))")
    called = [*callbacks, *([] if on_update is None else [on_update])]
    if wrong := [callback for callback in called if not callable(callback) or not accepts(callback, 0, {})]:
        raise ConfigError(
            f"on_update and callbacks must be functions of an update and its metrics, got {wrong[0]!r}; write "
            "def on_update(update, metrics): ..."
        )
    if controller is not None:
        check_controller(controller)
    if resume is not None:
        if config is not None:
            raise ConfigError("a resumed run has its own settings, got config and resume; leave one of them out")
        config = _resumed(Path(resume), env, controller)
    elif updates is not None:
        raise ConfigError(f"updates is for a run that is resumed, got updates={updates}; set config.updates")
    else:
        config = _with_given(config or from_recipe(QUICKSTART), env, controller)

    def all_called(update: int, metrics: Mapping[str, float]) -> bool:
        answers = [callback(update, dict(metrics)) for callback in called]
        # Other functions may return numbers, such as `file.write`.
        return any(is_verdict(answer) and answer for answer in answers)

    with advice_in_python(python_names(config)):
        require_extras(config)
    folder, evaluations = carry_out(
        RunRequest(config, resume=None if resume is None else Path(resume), updates=updates, python=True),
        Console(quiet=not show),
        given=Given(env=None if env is None or isinstance(env, str) else spec_from(env), controller=controller),
        on_update=all_called if called else None,
    )
    history = read_metrics(folder / "metrics.jsonl")
    evaluations = json.loads(json.dumps(evaluations))  # the same types as in evaluation.json
    return TrainResult(folder=folder, model=folder / "model", evaluations=evaluations, history=history)


def _resumed(folder: Path, env: object, controller: object) -> GRPOConfig:
    """The settings of a run that is resumed. Objects that the run was given must be given again."""
    env = absolute(env) if isinstance(env, str) else env
    config = saved_config(folder, env if isinstance(env, str) else "")
    for name, given, saved in (("env", env, config.environment.env), ("controller", controller, config.wrapper)):
        if given is not None and given != saved and not saved.startswith(GIVEN):
            raise ConfigError(
                f"the run in {folder} goes on with its saved {name}, {saved!r}, got {given!r}; leave it out"
            )
    return config


def _with_given(config: GRPOConfig, env: Any, controller: HorizonController | None) -> GRPOConfig:
    if isinstance(env, str):
        config = changed(config, env=env)
    elif env is not None:
        spec_from(env)  # raises if it is not a function
        config = changed(config, env=GIVEN + name_of(env))
        if not takes_split(env):
            config = changed(config, split="all", eval_split="all")
    if controller is not None:
        config = replace(config, horizon=NamedHorizon(GIVEN + name_of(type(controller))))
    return config
