"""Function calls in a model's own form: its chat template renders functions and results, and a parser reads the calls.

The parsers are response templates of transformers: the tokenizer's own, or else TRL's.
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_parsing import parse_response

from eh_gym.errors import ConfigError, MissingExtraError
from harness.chat.template import Message, Template

_CALL = "Eh-Call-Mark"
ASKED: Message = {"role": "user", "content": "question"}


class ToolFormat:
    """How a family writes calls and reads results; `end_id` is the token that ends a reply with calls."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: Template, special: frozenset[int]) -> None:
        self._tokenizer, self._template, self._special = tokenizer, template, special
        mark = "Eh-Result-Mark"
        if not template.takes([ASKED, _calling(["name"]), result_message("name", mark)], mark) or not template.takes(
            [ASKED, _calling(["name"])], _CALL
        ):
            raise ConfigError(
                f"native calls need a chat template with calls and the role tool, which {template.name} lacks; "
                "take another format of actions, or another model"
            )
        self._parser = _parser(tokenizer, template.name)
        self._before_reply = template([ASKED])
        self.end_id = self._ids(self.after_calls(["name"], [result_message("name", mark)]))[0]
        if self.end_id not in special:
            raise ConfigError(
                f"the chat template of {template.name} ends calls with no special token, so that nothing would stop "
                "the model there; take another format of actions, or another model"
            )

    def after_calls(self, names: Sequence[str], answers: Sequence[Message]) -> str:
        """The text from the end of a reply with calls to the place where the model writes again.

        `answers` are the messages after calls of the functions `names`.
        """
        try:
            return self._after_calls(names, answers)
        except ConfigError:
            if len(names) == 1 or any(answer["role"] != "tool" for answer in answers):
                raise
            # Llama's templates take one call per message; it gets all results.
            joined = "\n".join(answer["content"] for answer in answers)
            return self._after_calls(names[:1], [result_message(names[0], joined)])

    def _after_calls(self, names: Sequence[str], answers: Sequence[Message]) -> str:
        """Renders calls with a mark at their end, and returns what the template writes after it."""
        calling = _calling(names)
        alone = self._template([ASKED, calling], reply_next=False).split(_CALL, len(names))[-1].rstrip()
        text = self._template([ASKED, calling, *answers]).split(_CALL, len(names))[-1]
        last = self._ids(alone)[-1]
        end = len(alone) - (len(str(self._tokenizer.decode([last]))) if last in self._special else 0)
        if not text.startswith(alone[:end]):
            raise ConfigError(
                f"the chat template of {self._template.name} writes earlier calls in another form once there are "
                "results; a growing conversation can't be built from it; take another format of actions"
            )
        return text[end:]

    def call_text(self, message: Mapping[str, Any]) -> str:
        whole = self._template([ASKED, {"role": "assistant", **message}], reply_next=False).rstrip()
        last = self._ids(whole)[-1]
        if last in self._special and last == self.end_id:
            whole = whole.removesuffix(str(self._tokenizer.decode([last])))
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(whole, self._before_reply, strict=False))
        return whole[len(list(same)) :]

    def parse(self, reply: str, tools: Sequence[Any]) -> tuple[str, list[dict[str, Any]]] | None:
        """The words and the calls of a reply; None if it has calls that can't be read.

        `reply` has its special tokens. The schemas of `tools` give the types of arguments that are plain text.
        """
        try:
            message = parse_response(reply, self._parser, prefix=self._before_reply, tools=list(tools))
            calls = [as_call(call["function"]) for call in message.get("tool_calls") or []]
        except UNREADABLE:
            return None
        return str(message.get("content") or ""), calls

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)
"""What reading a call raises that the model has written wrong."""


def as_call(function: Any) -> Message:
    """A call as messages have it, from what the model wrote. Raises one of `UNREADABLE`."""
    name, arguments = function["name"], function.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("expected a name and an object")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def call_names(action: str) -> list[str]:
    try:
        message = json.loads(action)
        return [call["function"]["name"] for call in message["tool_calls"]]
    except (ValueError, TypeError, KeyError):
        return []


def _parser(tokenizer: PreTrainedTokenizerBase, name: str) -> Any:
    parser = getattr(tokenizer, "response_template", None)
    if parser is not None:
        return parser
    try:
        from trl.chat_template_utils import add_response_schema
    except ImportError as error:
        raise MissingExtraError(
            f"native calls need a parser for the calls of {name}, and its tokenizer brings none. TRL has those of "
            "many families; run, in a checkout: pip install -e '.[tools]'"
        ) from error
    try:
        return add_response_schema(copy.copy(tokenizer)).response_template
    except ValueError as error:
        raise ConfigError(
            f"native calls need a parser for the calls of {name}: its tokenizer brings none, and TRL knows no other "
            "revision of its chat template; set tokenizer.response_template and save the tokenizer, or take another "
            "format of actions"
        ) from error


def _calling(names: Sequence[str]) -> Message:
    calls = [
        {"id": call_id(at), "type": "function", "function": {"name": name, "arguments": {"mark": _CALL}}}
        for at, name in enumerate(names)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result_message(name: str, result: str, at: int = 0) -> Message:
    """The result of a call as a message. `at` is the index of the call in its message."""
    return {"role": "tool", "name": name, "tool_call_id": call_id(at), "content": result}


def call_id(at: int) -> str:
    return f"call{at:05d}"  # Mistral's templates need nine letters or digits
