"""Renders conversations with a tokenizer's own chat template."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eh_gym.errors import ConfigError

Message = dict[str, Any]
"""A message as chat templates take it: ``{"role": …, "content": …}``, perhaps with ``"tool_calls"``."""

# For templates that state today's date: prompts are the same on every day.
_DATE = datetime.datetime(2024, 7, 26)
# A macro before the template's text replaces transformers' strftime_now.
_CLOCK = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f" | replace({f'%{letter}'!r}, {_DATE.strftime(f'%{letter}')!r})" for letter in "aAbBdeHIjmMpSyYZ")
    + " }}{%- endmacro %}"
)


class Template:
    """A tokenizer's chat template; `source` is its text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any] | None = None) -> None:
        self._tokenizer, self._kwargs = tokenizer, dict(kwargs or {})
        self.name = tokenizer.name_or_path or "the tokenizer"
        if not tokenizer.chat_template:
            raise ConfigError(f"{self.name} has no chat template; use an instruction-tuned model or add a template")
        self.source = str(tokenizer.get_chat_template(tools=None))
        for name in self._kwargs:
            if not re.search(rf"\b{re.escape(name)}\b", self.source):
                raise ConfigError(
                    f"--chat-template-kwargs has {name!r}, which the chat template of {self.name} does not use; leave "
                    "it out"
                )

    def __call__(self, messages: Sequence[Message], *, tools: Sequence[Any] = (), reply_next: bool = True) -> str:
        """The conversation as text, with `reply_next` up to where the model writes. ConfigError if it is refused."""
        offered = list(tools) or None
        source = str(self._tokenizer.get_chat_template(tools=offered))
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=offered,
                chat_template=_CLOCK + source if "strftime_now" in source else source,
                add_generation_prompt=reply_next,
                tokenize=False,
                **{"date_string": _DATE.strftime("%d %b %Y"), **self._kwargs},
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(
                f"the chat template of {self.name} can't render a conversation of the roles {roles} ({error}); "
                "use an instruction-tuned text model, or correct tokenizer.chat_template"
            ) from error
        return str(text)

    def takes(self, messages: Sequence[Message], mark: str) -> bool:
        try:
            return mark in self(messages)
        except ConfigError:
            return False
