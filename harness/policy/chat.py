"""Turns messages into token ids, each message once.

An episode is one list of token ids that only grows: the prompt, what the model sampled, the next observation, and so on.
What the model sampled is kept as it was sampled; only new text is tokenised. The text that the template puts between two
messages is found once, at the start: a conversation of marker texts is rendered through the tokenizer's own chat template.
So any template works that delimits its turns (Qwen, Llama 3, ChatML, …).

As a result, the ids of a conversation are always a prefix of the ids of its next turn, whatever the template does. Some
templates would render earlier messages differently when later ones follow: Qwen3's strips the thinking of earlier replies.
This is detected at the start and reported in `ChatFormat.notes`; nothing is removed from what the model wrote.

The tool-call fields of templates are not used. Environments state their action format in the system prompt, as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eh_gym.errors import ConfigError

__all__ = ["ChatFormat"]

# The markers have upper and lower case, so that a template that changes the case is detected.
_REPLY, _OBSERVATION = "Eh-Reply-Mark", "Eh-Observation-Mark"
_THOUGHT = "Eh-Thought-Mark"
# Llama 3's templates state a date, by default today's. This is their own fallback for when there is no clock. Other templates
# ignore it.
_DATE = "26 Jul 2024"


@dataclass(frozen=True)
class _Template:
    """The template's text around an observation: ``after_reply + observation + before_reply``."""

    after_reply: str
    before_reply: str


class ChatFormat:
    """Turns the messages of one episode into token ids.

    Args:
        tokenizer: A tokenizer with a chat template.
        max_observation_tokens: A longer observation keeps its first and its last ``max_observation_tokens // 2`` tokens; a
            note replaces the middle. None keeps every observation whole.

    Attributes:
        stop_ids: The tokens that end a reply.
        notes: What the template would change in a growing conversation, but is not changed here; one sentence each.

    Raises:
        ConfigError: The tokenizer has no chat template, or its template rewrites the messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_observation_tokens: int | None = None) -> None:
        if not tokenizer.chat_template:
            raise ConfigError("the tokenizer has no chat template; use an instruction-tuned model or add a template")
        if max_observation_tokens is not None and max_observation_tokens < 16:
            raise ConfigError(f"max_observation_tokens must be >= 16, got {max_observation_tokens}")
        self._tokenizer = tokenizer
        self._template = _template_of(tokenizer)
        self._max_observation_tokens = max_observation_tokens
        self.notes = _notes(tokenizer)
        self.stop_ids = self._find_stop_ids()

    def prompt_ids(self, system_prompt: str, observation: str) -> list[int]:
        """The ids of the first prompt, up to the place where the model starts to write."""
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages.append({"role": "user", "content": self._cut(observation)})
        return self._ids(_rendered(self._tokenizer, messages))

    def observation_ids(self, observation: str, *, stopped: bool) -> list[int]:
        """The ids that follow a reply, up to the place where the model writes again.

        Args:
            observation: The environment's answer.
            stopped: Whether the reply ended with a stop token. If it was cut off, the template's end of a reply is added; the
                model did not write it.
        """
        ids = self._ids(self._template.after_reply + self._cut(observation) + self._template.before_reply)
        return ids[1:] if stopped and ids[0] in self.stop_ids else ids

    def reply_ids(self, text: str) -> list[int]:
        """The ids of a reply that the model did not write (a demonstration), including the stop token."""
        return [*self._ids(text), self._end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """The text of a sampled reply, as the environment receives it."""
        ids = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def text(self, ids: Sequence[int]) -> str:
        """All ids as text, including special tokens; for logs."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _cut(self, observation: str) -> str:
        limit = self._max_observation_tokens
        # A token holds at least one byte, so a text with no more bytes than the limit fits.
        if limit is None or len(observation.encode("utf-8", "surrogatepass")) <= limit:
            return observation
        ids = self._ids(observation)
        if len(ids) <= limit:
            return observation
        # A cut inside the bytes of a character leaves the replacement character.
        head = str(self._tokenizer.decode(ids[: limit // 2])).rstrip("\ufffd")
        tail = str(self._tokenizer.decode(ids[-(limit // 2) :])).lstrip("\ufffd")
        return f"{head}\n[{len(ids) - 2 * (limit // 2)} tokens left out]\n{tail}"

    def _find_stop_ids(self) -> frozenset[int]:
        """The tokenizer's end-of-sequence token and the token with which the template ends a reply."""
        after = self._ids(self._template.after_reply)
        # `all_special_ids` has only the named ones: if Llama's eos is <|end_of_text|>, <|eot_id|> is not among them.
        added = self._tokenizer.added_tokens_decoder
        special = set(self._tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        eos = self._tokenizer.eos_token_id
        if after and after[0] in special:
            self._end_id = after[0]
        elif eos is not None:
            self._end_id = int(eos)
        else:
            raise ConfigError("the chat template ends a reply with no special token and the tokenizer has no eos_token")
        return frozenset({self._end_id} | ({int(eos)} if eos is not None else set()))


def _template_of(tokenizer: PreTrainedTokenizerBase) -> _Template:
    text = _rendered(tokenizer, _conversation(_REPLY))
    if text.count(_REPLY) != 1 or text.count(_OBSERVATION) != 1 or text.index(_REPLY) > text.index(_OBSERVATION):
        raise ConfigError(
            "the chat template does not keep the messages as they are, one after the other; "
            "a growing conversation can't be built from it"
        )
    after_reply, before_reply = text.split(_REPLY)[1].split(_OBSERVATION)
    return _Template(after_reply, before_reply)


def _notes(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """What the template does to earlier replies. This is found by rendering replies with marker texts."""
    found = []
    thinking = _rendered(tokenizer, _conversation(f"<think>\n{_THOUGHT}\n</think>\n\n{_REPLY}"))
    if _THOUGHT not in thinking:
        found.append(
            "the chat template strips the thinking of earlier replies; here it stays in the conversation, as it was "
            "sampled, so that the model is trained on exactly what it sampled"
        )
    padded = f" \n{_REPLY}\n "
    if padded not in _rendered(tokenizer, _conversation(padded)):
        found.append("the chat template strips blanks around messages; here replies stay as they were sampled")
    return tuple(found)


def _conversation(reply: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": _OBSERVATION},
    ]


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    """The conversation as text, up to the place where the model starts to write."""
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, date_string=_DATE))
