"""The packages beside the extra ``train`` that some settings need."""

from importlib.util import find_spec
from typing import Any

from eh_gym.errors import MissingExtraError
from harness.settings.section import flat


def require_extras(settings: Any) -> None:
    """Raises MissingExtraError if a package that a command's settings need is not there. Imports none of them."""
    has = flat(settings)
    for flag, needed, package, instead in (
        ("--trackers wandb", "wandb" in has.get("trackers", ""), "wandb", "leave wandb out of --trackers"),
        ("--lora-rank", has.get("lora_rank"), "peft", "leave it out"),
        (
            "--sampler vllm",
            has["sampler"] == "vllm",
            "vllm",
            "use --sampler transformers; docs/vllm.md has the way for a CPU",
        ),
        ("--env-workers ray", has["env_workers"] == "ray", "ray", "use --env-workers local"),
        ("--env EH-Remote-v0", "EH-Remote-v" in has["env"], "openenv", "choose another --env"),
        ("--policy openai", has.get("policy") == "openai", "openai", "give a model's folder or hub id"),
    ):
        if needed and find_spec(package) is None:
            extra = {"peft": "lora"}.get(package, package)
            raise MissingExtraError(
                f"{flag} needs {package}; run, in a checkout: pip install -e '.[train,{extra}]', or {instead}"
            )
