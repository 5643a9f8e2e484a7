"""From messages to token ids, once and never back.

An episode is one list of token ids that only grows: the prompt, what the model sampled, the next observation, and so on.
What the model sampled is kept as it was sampled; only new text is tokenised. The pieces of the template that stand
between two messages are found once, at the start, by rendering a conversation with marker texts through the
tokenizer's own chat template, so that any template serves whose turns are delimited (Qwen, Llama 3, ChatML, …).

So the ids of a conversation are a prefix of its next turn's, whatever the template does. Some templates would render
earlier messages otherwise once there are later ones: Qwen3's strips the thinking of earlier replies. That is found at the
start and said in `ChatFormat.notes`; nothing is taken out of what the model wrote.

Left out: tool-call fields of templates. Environments state their action format in the system prompt, as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eh_gym.errors import ConfigError

__all__ = ["ChatFormat"]

_REPLY, _OBSERVATION = "Eh-Reply-Mark", "Eh-Observation-Mark"  # in both cases, so that a changed case shows
_THOUGHT = "Eh-Thought-Mark"
# Llama 3's templates state a date, today's by default; it is what they fall back to where there is no clock. Others ignore it.
_DATE = "26 Jul 2024"


@dataclass(frozen=True)
class _Template:
    """Text around an observation: ``after_reply + observation + before_reply``."""

    after_reply: str
    before_reply: str


class ChatFormat:
    """Turns the messages of one episode into token ids.

    Args:
        tokenizer: With a chat template.
        max_observation_tokens: A longer observation loses its middle, with a note in its place: what is left is its
            first and its last ``max_observation_tokens // 2`` tokens. None keeps all.

    Attributes:
        stop_ids: Tokens that end a reply.
        notes: What the template would do to a growing conversation, and is not done here; a sentence each.

    Raises:
        ConfigError: The tokenizer has no chat template, or one that rewrites the messages it is given.
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
        """The ids of the first prompt, up to where the model writes."""
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages.append({"role": "user", "content": self._cut(observation)})
        return self._ids(_rendered(self._tokenizer, messages))

    def observation_ids(self, observation: str, *, stopped: bool) -> list[int]:
        """The ids that follow a reply, up to where the model writes again.

        Args:
            observation: The environment's answer.
            stopped: Whether the reply ended with a stop token. A reply that was cut off gets the template's own end,
                which the model did not write.
        """
        ids = self._ids(self._template.after_reply + self._cut(observation) + self._template.before_reply)
        return ids[1:] if stopped and ids[0] in self.stop_ids else ids

    def reply_ids(self, text: str) -> list[int]:
        """The ids of a reply written by somebody else (a demonstration), its stop token included."""
        return [*self._ids(text), self._end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """The text that a sampled reply means to the environment."""
        ids = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def text(self, ids: Sequence[int]) -> str:
        """All ids as text, special tokens included; for logs."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _cut(self, observation: str) -> str:
        limit = self._max_observation_tokens
        # A token holds at least one byte.
        if limit is None or len(observation.encode("utf-8", "surrogatepass")) <= limit:
            return observation
        ids = self._ids(observation)
        if len(ids) <= limit:
            return observation
        # A cut inside a character's bytes leaves the replacement character.
        head = str(self._tokenizer.decode(ids[: limit // 2])).rstrip("\ufffd")
        tail = str(self._tokenizer.decode(ids[-(limit // 2) :])).lstrip("\ufffd")
        return f"{head}\n[{len(ids) - 2 * (limit // 2)} tokens left out]\n{tail}"

    def _find_stop_ids(self) -> frozenset[int]:
        """The tokenizer's end-of-sequence token and the token with which the template ends a reply."""
        after = self._ids(self._template.after_reply)
        # `all_special_ids` has the named ones only: where Llama's eos is <|end_of_text|>, its <|eot_id|> is not among them.
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
    """What the template does to earlier replies, found by rendering marked ones."""
    found = []
    thinking = _rendered(tokenizer, _conversation(f"<think>\n{_THOUGHT}\n</think>\n\n{_REPLY}"))
    if _THOUGHT not in thinking:
        found.append(
            "the chat template strips the thinking of earlier replies; here it stays in the conversation, as it was "
            "sampled, so that what is trained is what was sampled"
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
    """The conversation as text, up to where the model writes."""
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, date_string=_DATE))
