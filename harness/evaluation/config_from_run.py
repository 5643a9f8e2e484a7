"""The settings of an evaluation that a training run's folder gives."""

from dataclasses import replace
from pathlib import Path
from shlex import quote

from eh_gym.errors import ConfigError
from harness.records.run_folder import saved_config
from harness.settings.evaluate import EvaluateConfig


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "versions.json").is_file()


def config_from_run(folder: Path, env: str = "") -> EvaluateConfig:
    """The model of a run with the run's environment or agent, its held-out split, K, dtype, chat and limits.

    `env` is as for `saved_config`.
    """
    if not is_run(folder):
        raise ConfigError(
            f"{folder} is not the folder of a run; for a model's folder or hub id, give --policy {quote(str(folder))}"
        )
    if not (folder / "model").is_dir():
        raise ConfigError(
            f"the run in {folder} has no model yet; resume it: python -m harness.grpo --resume {quote(str(folder))}"
        )
    run, plain = saved_config(folder, env), EvaluateConfig()
    return replace(
        plain,
        policy=str(folder / "model"),
        horizon=run.evaluation_horizon,
        environment=replace(run.environment, env=",".join(run.environment.environments()), split=run.evaluation.split),
        model=replace(run.model, model=plain.model.model, device=plain.model.device, threads=plain.model.threads),
        rollout=replace(run.rollout, rollout=plain.rollout.rollout, slots=plain.rollout.slots),
    )
