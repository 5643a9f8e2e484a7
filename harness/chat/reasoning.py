"""How families of models write their thoughts, and where a sampled thought ends."""

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness.settings.model import REASONING_FORMATS


@dataclass(frozen=True)
class Reasoning:
    """How a model writes its thoughts.

    Attributes:
        name: "none"; "tags": the model writes the opening tag; "opened": the chat template writes it at the end of
            every prompt; "channels": thought and answer are messages of their own, as in gpt-oss's harmony format.
        opening: The text that begins a thought.
        closing: The text that ends it.
        end: The text between a thought and the first token of the answer.
        answer: The text that begins an answer, with channels only.
    """

    name: str
    opening: str = ""
    closing: str = ""
    end: str = ""
    answer: str = ""

    def thought(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> int | None:
        """The number of ids of a thought, with its tags, in a reply without stop token; None if it did not end."""
        if self.name == "none":
            return 0
        text = str(tokenizer.decode(list(ids)))
        for mark in filter(None, (self.answer, self.closing)):
            before, marked, after = text.rpartition(mark)
            # With channels, a call may follow a thought; its header names the function.
            if marked and (mark == self.answer or not self.answer or "to=" in after):
                return _until(tokenizer, ids, mark, before.count(mark) + 1)
        began = self.name == "opened" or text.lstrip().startswith(self.opening.strip())
        return None if began else 0

    def text(self, decoded: str) -> str:
        if not self.answer:
            return (decoded.rpartition(self.closing)[0] or decoded).strip().removeprefix(self.opening.strip()).strip()
        for mark in (self.end, self.answer, self.end.removesuffix(self.answer), self.closing, self.opening):
            decoded = decoded.replace(mark, "\n")
        return decoded.strip()


def _tags(opening: str, closing: str, end: str = "") -> Reasoning:
    return Reasoning("tags", opening, closing, end or closing)


NO_REASONING = Reasoning("none")
_THINK = _tags("<think>", "</think>", "\n</think>\n\n")
_HARMONY = Reasoning(
    "channels",
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
)
# A text in the chat template or vocabulary, and its family. The first match counts.
_FAMILIES: tuple[tuple[str, Reasoning], ...] = (
    ("<|channel|>analysis", _HARMONY),
    (
        "to=self<|message|>",  # Muse
        Reasoning(
            "channels",
            " to=self<|message|>",
            "<|eom|>",
            "<|eom|><|start|>assistant to=user<|message|>",
            " to=user<|message|>",
        ),
    ),
    ("<|channel>thought", _tags("<|channel>thought\n", "<channel|>", "\n<channel|>")),  # Gemma 4
    ("[THINK]", _tags("[THINK]", "[/THINK]")),  # Magistral
    ("<|START_THINKING|>", _tags("<|START_THINKING|>", "<|END_THINKING|>")),  # Command A
    ("<seed:think>", _tags("<seed:think>", "</seed:think>", "</seed:think>\n")),  # Seed-OSS
    ("<|inner_prefix|>", _tags("<|inner_prefix|>", "<|inner_suffix|>")),  # Apertus
    ("</think>", _THINK),
)


def find_reasoning(
    tokenizer: PreTrainedTokenizerBase, template: str, before_reply: str, wanted: str = "auto"
) -> Reasoning:
    """Finds how a model writes its thoughts.

    Args:
        tokenizer: The model's tokenizer.
        template: The source of the chat template.
        before_reply: The template's text between an observation and the reply.
        wanted: One of `REASONING_FORMATS`, or the two tags around a thought with a blank between them. "auto" looks at
            the template, the vocabulary and the tokenizer's ``response_template``.
    """
    if wanted == "none":
        return NO_REASONING
    if wanted == "harmony":
        return _HARMONY
    if wanted not in REASONING_FORMATS:
        opening, closing = wanted.split()
        family = _tags(opening, closing)
    else:
        vocabulary = tokenizer.added_tokens_encoder
        known = [family for sign, family in _FAMILIES if sign in template or sign in vocabulary]
        known += _from_schema(getattr(tokenizer, "response_template", None))
        family = known[0] if known else NO_REASONING if wanted == "auto" else _THINK
    if family.name == "tags":
        opened = before_reply.rfind(family.opening) > before_reply.rfind(family.closing)
        if wanted == "opened" or (wanted != "tags" and opened):
            return replace(family, name="opened")
    return family


def _from_schema(schema: Any) -> list[Reasoning]:
    """The tags around thoughts in a response template of transformers, if they are plain texts."""
    fields = schema.get("fields", {}) if isinstance(schema, Mapping) else {}
    field = fields.get("reasoning_content") or fields.get("thinking") or {}
    opening, closing = field.get("open"), field.get("close")
    if pattern := field.get("close_pattern"):
        plain = re.sub(r"\\(\W)", r"\1", pattern.removesuffix(r"\s*"))
        closing = plain if re.fullmatch(pattern, plain) else None
    return [_tags(opening, closing)] if opening and closing else []


def _until(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], mark: str, count: int) -> int:
    """The number of ids up to the end of the last `mark`, the `count`-th in their text."""
    token = tokenizer.added_tokens_encoder.get(mark)
    if token is not None and token in ids:
        return len(ids) - list(ids)[::-1].index(token)
    return first_with(tokenizer, ids, mark, count)


def first_with(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], mark: str, count: int = 1) -> int:
    """The least number of ids whose text has `mark` `count` times; len(ids) + 1 if there are fewer."""

    def marks(end: int) -> int:
        return str(tokenizer.decode(list(ids[:end]))).count(mark)

    return bisect.bisect_left(range(len(ids) + 1), count, key=marks)
