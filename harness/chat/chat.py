"""Turns messages into token ids, and what the model wrote into an action.

An episode is one list of token ids that only grows. Sampled ids are kept; only new text is tokenised. A conversation of
marker texts, rendered once, shows the template's text between two messages.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from eh_gym.answers import results_fault
from eh_gym.errors import ConfigError
from eh_gym.surrogates import escaped
from harness.chat.reasoning import find_reasoning, first_with
from harness.chat.template import Message, Template
from harness.chat.tools import ASKED, ToolFormat, call_names, result_message
from harness.settings.model import Model

# Upper and lower case detect a template that changes the case.
_REPLY, _OBSERVATION = "Eh-Reply-Mark", "Eh-Observation-Mark"
_THOUGHT, _SYSTEM = "Eh-Thought-Mark", "Eh-System-Mark"

_CHARACTERS = 128  # of the longest tokens of the usual vocabularies


@dataclass(frozen=True)
class Reply:
    """What the model wrote in one turn.

    Attributes:
        action: The answer without the thought. With tools, the assistant's message as JSON.
        reasoning: The thought, without its tags.
        thought_tokens: The number of ids of the thought, including the tags.
        unfinished: Whether a thought did not end; `action` is then empty.
        malformed: Whether the reply has calls that can't be read.
    """

    action: str
    reasoning: str = ""
    thought_tokens: int = 0
    unfinished: bool = False
    malformed: bool = False


_PLAIN = Model()


class ChatFormat:
    """Turns the messages of one episode into token ids, and replies into actions.

    Args:
        tokenizer: A tokenizer with a chat template.
        settings: How the chat is written. An observation of more than ``max_observation_tokens`` loses its middle.
        stop_ids: Further tokens that end a reply, such as those of the model's generation config.

    Attributes:
        stop_ids: All tokens that end a reply.
        notes: Sentences about differences from the template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, settings: Model = _PLAIN, *, stop_ids: Iterable[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._template = Template(tokenizer, settings.chat_template_kwargs)
        self._max_observation_tokens = settings.max_observation_tokens
        self._after_reply, self._before_reply = self._around_observation()
        self.reasoning = find_reasoning(tokenizer, self._template.source, self._before_reply, settings.reasoning_format)
        self._system_apart = self._takes_system()
        self.notes = self._notes()
        # `all_special_ids` may lack tokens, such as <|eot_id|> if Llama's eos is <|end_of_text|>.
        added = tokenizer.added_tokens_decoder
        self._special = frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        self.stop_ids = self._find_stop_ids(stop_ids)
        self._tool_format: ToolFormat | None = None  # made when needed, because a parser may need TRL

    def tool_format(self) -> ToolFormat:
        """How the model writes function calls. The token that ends calls joins `stop_ids`."""
        if self._tool_format is None:
            self._tool_format = ToolFormat(self._tokenizer, self._template, self._special)
            self.stop_ids |= {self._tool_format.end_id}
            self._ends |= {self._tool_format.end_id}
        return self._tool_format

    def prompt_ids(self, system_prompt: str, observation: str, tools: Sequence[Any] = ()) -> list[int]:
        """The ids of the first prompt, up to the place where the model writes. An empty system prompt is left out."""
        if tools:
            self.tool_format()  # raises for a model without calls
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages = [*system, {"role": "user", "content": self.cut(observation)}]
        return self.messages_ids(self.with_system_apart(messages), tools)

    def result_messages(self, action: str, results: Sequence[str]) -> list[Message]:
        names = call_names(action)
        if fault := results_fault(results, len(names)):
            raise ConfigError(fault)
        named = enumerate(zip(names, results, strict=True))
        return [result_message(name, self.cut(text, share=len(results)), at) for at, (name, text) in named]

    def observation_ids(self, observation: str, *, stopped: bool) -> list[int]:
        """The ids that follow a reply, up to the place where the model writes again.

        If no stop token has `stopped` the reply, they begin with the template's end of a reply.
        """
        return self.following_ids([], [{"role": "user", "content": self.cut(observation)}], stopped=stopped)

    def messages_ids(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        return self._ids(self._template(messages, tools=tools))

    def following_ids(self, names: Sequence[str], new: Sequence[Message], *, stopped: bool) -> list[int]:
        """As `observation_ids`, for any messages. `names` are the functions that the reply has called."""
        if names:
            return self._following(self.tool_format().after_calls(names, new), stopped)
        if [message["role"] for message in new] == ["user"]:
            return self._following(self._after_reply + new[0]["content"] + self._before_reply, stopped)
        text = self._template([ASKED, {"role": "assistant", "content": _REPLY}, *new])
        return self._following(text.partition(_REPLY)[2], stopped)

    def with_system_apart(self, messages: Sequence[Message]) -> list[Message]:
        if self._system_apart or not messages or messages[0]["role"] != "system":
            return list(messages)
        system, *rest = messages
        if not rest or rest[0]["role"] != "user":
            return [{**system, "role": "user"}, *rest]
        return [{**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]

    def until(self, ids: Sequence[int], stops: Sequence[str]) -> int:
        """The number of ids of a reply up to the first stop text in its answer, or of all its ids."""
        begin = self.reasoning.thought(self._tokenizer, ids)
        answer = list(ids[begin:]) if begin is not None else []
        ends = [first_with(self._tokenizer, answer, stop) for stop in stops if stop in self.text(answer)]
        return min((begin or 0) + end for end in ends) if ends else len(ids)

    def reply_ids(self, action: str) -> list[int]:
        if call_names(action):
            return [*self._ids(self.tool_format().call_text(json.loads(action))), self.tool_format().end_id]
        begin = self.reasoning.end if self.reasoning.name == "opened" else self.reasoning.answer
        return [*self._ids(begin + action), self._end_id]

    def read(self, ids: Sequence[int], tools: Sequence[Any] = ()) -> Reply:
        """Splits a sampled reply, with or without a stop token, into its thought and its action.

        With `tools`, the action is the assistant's message as JSON.
        """
        body = list(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)
        length = self.reasoning.thought(self._tokenizer, body)
        thought = self.reasoning.text(self.text(body[:length])) if length != 0 else ""
        if length is None:
            return Reply("", thought, len(body), unfinished=True)
        answer = str(
            self._tokenizer.decode(body[length:], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
        answer = answer.lstrip() if length else answer
        if not tools:
            return Reply(answer, thought, length)
        parsed = self.tool_format().parse(self.text(ids), tools)
        if parsed is None:
            return Reply(answer, thought, length, malformed=True)
        words, calls = parsed
        # GLM-4.5's parser counts the stop token as words.
        words = words.removesuffix(self.text(ids[len(body) :]))
        message: Message = {"role": "assistant", "content": words}
        if calls:
            message["tool_calls"] = calls
        return Reply(json.dumps(message), thought, length)

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(escaped(text), add_special_tokens=False))

    def _following(self, text: str, stopped: bool) -> list[int]:
        """`text` begins at the end of a reply. A stop token that the reply has already is left out."""
        ids = self._ids(text)
        if not stopped:
            return ids
        end = next((at for at, i in enumerate(ids) if i in self._ends), None)
        blank = end is not None and not self.text(ids[:end]).strip()  # Llama 2 has a blank before the stop token
        return ids[end + 1 :] if end is not None and blank else ids

    def cut(self, observation: str, share: int = 1) -> str:
        """The text without its middle if it is too long. `share` texts share the limit."""
        limit = self._max_observation_tokens and max(16, self._max_observation_tokens // share)
        # A token holds at least one byte.
        observation = escaped(observation)
        if not limit or len(observation.encode()) <= limit:
            return observation
        room = _CHARACTERS * (limit // 2)  # at each end
        long = len(observation) > 2 * room
        first = self._ids(observation[:room] if long else observation)
        last = self._ids(observation[-room:]) if long else first
        if not long and len(first) <= limit:
            return observation
        # A cut inside the bytes of a character leaves the replacement character.
        head = str(self._tokenizer.decode(first[: limit // 2])).rstrip("\ufffd")
        tail = str(self._tokenizer.decode(last[-(limit // 2) :])).lstrip("\ufffd")
        left = len(observation) - len(head) - len(tail) if long else len(first) - 2 * (limit // 2)
        return f"{head}\n[{left} {'characters' if long else 'tokens'} left out]\n{tail}"

    def _find_stop_ids(self, more: Iterable[int]) -> frozenset[int]:
        after = self._ids(self._after_reply)
        eos = self._tokenizer.eos_token_id
        ends = frozenset({int(eos)} if eos is not None else set()) | frozenset(more)
        # With channels, the template's end of a reply also ends a thought.
        if after and after[0] in self._special and not (self.reasoning.answer and ends):
            self._end_id = after[0]
        elif eos is not None:
            self._end_id = int(eos)
        else:
            raise ConfigError(
                f"the chat template of {self._template.name} ends a reply with no special token and the tokenizer has "
                "no eos_token; set tokenizer.eos_token and save the tokenizer"
            )
        self._ends = ends | {self._end_id} | (set(after[:1]) & self._special)
        return ends | {self._end_id}

    def _around_observation(self) -> tuple[str, str]:
        text = self._template(_conversation(_REPLY))
        if text.count(_REPLY) != 1 or text.count(_OBSERVATION) != 1 or text.index(_REPLY) > text.index(_OBSERVATION):
            raise ConfigError(
                f"the chat template of {self._template.name} does not keep the messages as they are, one after the "
                "other; a growing conversation can't be built from it"
            )
        after_reply, before_reply = text.split(_REPLY)[1].split(_OBSERVATION)
        return after_reply, before_reply

    def _takes_system(self) -> bool:
        try:
            text = self._template([{"role": "system", "content": _SYSTEM}, ASKED])
        except ConfigError:
            return False
        # A template that names the role drops the text on purpose.
        return _SYSTEM in text or "system" in self._template.source

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if not self._system_apart:
            notes.append(
                "the chat template has no system role; the system prompt is at the beginning of the first message"
            )
        shown = self._template(_conversation(_REPLY, reasoning_content=_THOUGHT, thinking=_THOUGHT))
        style = self.reasoning
        opening, end = (style.opening, style.end) if style.opening else ("<think>\n", "\n</think>\n\n")
        shown += "" if style.answer else self._template(_conversation(f"{opening}{_THOUGHT}{end}{_REPLY}"))
        if _THOUGHT not in shown:
            notes.append(
                "the chat template strips the thinking of earlier replies; here it stays in the conversation, as it "
                "was sampled, so that the model is trained on exactly what it sampled"
            )
        return tuple(notes)


def _conversation(reply: str, **more: str) -> list[Message]:
    return [ASKED, {"role": "assistant", "content": reply, **more}, {"role": "user", "content": _OBSERVATION}]
