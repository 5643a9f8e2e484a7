"""The defaults of a command line, which a recipe overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.settings.defaults import DECISIVE
from harness.settings.grpo import GRPOConfig
from harness.settings.recipe import read_recipe, with_recipe

__all__ = ["flag_of", "preset"]


def preset(argv: Sequence[str]) -> GRPOConfig:
    """Returns the defaults for a command line: those of `GRPOConfig` for its kind of run, and a recipe's.

    >>> config = preset(["--model", "Qwen/Qwen2.5-7B-Instruct"])
    >>> config.learning_rate, config.dtype, config.gradient_checkpointing
    (1e-06, 'bfloat16', True)
    >>> preset([]).updates
    60
    """
    recipe = flag_of(argv, "recipe", "")
    given = read_recipe(Path(recipe), GRPOConfig) if recipe else {}
    found: dict[str, Any] = {
        n: flag_of(argv, n.replace("_", "-"), given.get(n, getattr(GRPOConfig, n))) for n in DECISIVE
    }
    found["lora_rank"] = int(found["lora_rank"]) if str(found["lora_rank"]).isdecimal() else 0
    if found["sampler"] != "vllm":  # the others differ in no default, and servers need an address
        found["sampler"] = GRPOConfig.sampler
    named = {name: getattr(GRPOConfig, name) for name in DECISIVE}  # the command line itself gives them
    config = dataclasses.replace(GRPOConfig(**found), **named)
    if not recipe:
        return config
    return dataclasses.replace(with_recipe(config, given, Path(recipe)), recipe=Path(recipe))


def flag_of(argv: Sequence[str], name: str, default: str) -> str:
    """Returns the last value of one flag, before the flags are parsed. Like tyro it takes a flag with underscores, too."""
    for i, word in reversed(list(enumerate(argv))):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == f"--{name}":
            if equals:
                return value
            if i + 1 < len(argv):
                return argv[i + 1]
    return default
