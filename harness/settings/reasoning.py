"""Flags about the chat format: the variables of the chat template, and the model's thoughts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eh_gym.errors import ConfigError
from envs.making import json_object
from harness.types.rules import REASONING_FORMATS

__all__ = ["ReasoningFlags", "read_template_kwargs"]

_OURS = (
    "messages",
    "conversation",
    "tools",
    "chat_template",
    "add_generation_prompt",
    "tokenize",
    "strftime_now",
)  # what every rendering sets by itself


@dataclass(frozen=True)
class ReasoningFlags:
    """The model's chat template, and how the model writes its thoughts."""

    chat_template_kwargs: str = "{}"
    """Further variables of the chat template, as a JSON object, such as '{"enable_thinking": false}'."""
    reasoning_format: str = "auto"
    """How the model writes its thoughts: tags (<think>), opened (by the template), harmony (gpt-oss), none, or two other tags,
    such as '<seed:think> </seed:think>'. auto finds it."""

    def check_reasoning(self) -> None:
        """Raises ConfigError if the format or the variables can't be read."""
        read_template_kwargs(self.chat_template_kwargs)
        tags = self.reasoning_format.split()
        if self.reasoning_format not in REASONING_FORMATS and (len(tags) != 2 or tags[0] == tags[1]):
            raise ConfigError(
                f"--reasoning-format must be one of {', '.join(REASONING_FORMATS)}, or two different tags with a blank between, "
                f"got {self.reasoning_format!r}"
            )


def read_template_kwargs(text: str) -> dict[str, Any]:
    """Reads ``--chat-template-kwargs``.

    Raises:
        ConfigError: The text is not a JSON object, or it names what every rendering sets by itself.
    """
    values = json_object(text, "--chat-template-kwargs", '{"enable_thinking": false}')
    if taken := [name for name in values if name in _OURS]:
        raise ConfigError(f"--chat-template-kwargs must not have {', '.join(taken)}; leave it out")
    return values
