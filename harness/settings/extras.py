"""The packages beside the extra ``train`` that some settings need."""

from importlib.util import find_spec
from typing import Any

from eh_gym.errors import MissingExtraError
from harness.settings.section import flat


def require_extras(settings: Any) -> None:
    """Raises MissingExtraError if a package that a command's settings need is not there. Imports none of them."""
    by_flag, sampling = flat(settings), settings.sampling
    for flag, needed, package, instead in (
        ("--trackers wandb", "wandb" in by_flag.get("trackers", ""), "wandb", "leave wandb out of --trackers"),
        ("--lora-rank", by_flag.get("lora_rank"), "peft", "leave it out"),
        (
            f"--sampler {sampling.sampler}",
            sampling.package,
            sampling.package,
            "use --sampler transformers; docs/vllm.md has the way for a CPU",
        ),
        ("--env-workers ray", by_flag["env_workers"] == "ray", "ray", "use --env-workers local"),
        ("--env EH-Remote-v0", "EH-Remote-v" in by_flag["env"], "openenv", "choose another --env"),
        ("--policy openai", by_flag.get("policy") == "openai", "openai", "give a model's folder or hub id"),
    ):
        if needed and find_spec(package) is None:
            extra = {"peft": "lora"}.get(package, package)
            raise MissingExtraError(
                f"{flag} needs {package}; run, in a checkout: pip install -e '.[train,{extra}]', or {instead}"
            )
