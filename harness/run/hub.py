"""Uploads the model of a finished run to the Hugging Face hub (`--push-to-hub`), with a card that says how it was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from harness.run.files import write_whole
from harness.run.versions import package_versions
from harness.settings.grpo import GRPOConfig

__all__ = ["check_login", "push"]


def check_login() -> None:
    """Raises ConfigError if there is no login for the hub, so that a run does not find out at its end. It sends nothing."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise ConfigError("--push-to-hub needs a login; run hf auth login, or set HF_TOKEN to a token that may write")


def push(model: Path, config: GRPOConfig, evaluations: Mapping[str, Any]) -> str:
    """Writes the model's card, and uploads the folder in one commit.

    Args:
        model: The folder of the model.
        config: The run's settings; `push_to_hub` names the repository, which is made if there is none.
        evaluations: The evaluations before and after training.

    Returns:
        The address of the repository.

    Raises:
        Exception: Whatever huggingface_hub raises. The folder is whole then, and has its card.
    """
    from huggingface_hub import HfApi

    write_whole(model / "README.md", _card(config, evaluations))
    api = HfApi()
    repository = api.create_repo(config.push_to_hub, private=not config.push_public, exist_ok=True)
    api.upload_folder(repo_id=repository.repo_id, folder_path=model, commit_message=f"Train on {config.env}")
    return str(repository)


def _card(config: GRPOConfig, evaluations: Mapping[str, Any]) -> str:
    """The model card: what the model was trained on, its success before and after, all settings, and the versions."""
    from huggingface_hub import ModelCardData

    settings = config.public()
    base = None if config.model == "tiny" or Path(config.model).is_dir() else config.model
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base,
        tags=["reinforcement-learning", "grpo", "elastic-horizon", config.env],
    )
    tasks = evaluations["after"]["sampled"]["tasks"] if config.eval_tasks else 0
    rows = [
        f"| {when} | {found['sampled']['mean_at_k']:.3f} | {found['greedy']['mean_at_k']:.3f} |"
        for when, found in evaluations.items()
        if config.eval_tasks
    ]
    scores = (
        "\n".join(
            [
                f"Success on {tasks} tasks of the split `{config.eval_split}`, at K = {config.k_max}:",
                "",
                "| training | sampled | greedy |",
                "| --- | --- | --- |",
                *rows,
            ]
        )
        if rows
        else "The run evaluated nothing."
    )
    return f"""---
{data.to_yaml()}
---

# {config.push_to_hub.rpartition("/")[2]}

`{settings["model"]}`, trained for {config.updates} updates of GRPO on `{config.env}` with
Elastic Horizon, under the horizon `{config.wrapper}`.

{scores}

## Settings

```json
{json.dumps(settings, indent=2)}
```

## Versions

```json
{json.dumps(package_versions(), indent=2)}
```
"""
