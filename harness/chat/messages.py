"""Conversations of agents, which are lists of chat messages with function calls, in the tokens of a model.

If the model's chat template has no functions, the system prompt describes them. Calls and results then stand in
``<tool_call>`` and ``<tool_response>`` tags, as in Hermes' and Qwen's formats.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from eh_gym.errors import ConfigError
from harness.chat.chat import ChatFormat, Reply
from harness.chat.template import Message
from harness.chat.tools import UNREADABLE, as_call, call_id, result_message

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTIONS = """# Tools

You may call one or more functions. Their signatures are within <tools></tools> tags:
<tools>
{functions}
</tools>

For each call, return a JSON object with the function's name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class MessageFormat:
    """The messages of a conversation with some functions on offer.

    They are those of `harness.agents.protocol.ModelCall.messages`. An assistant's may also have ``"reasoning"``.
    """

    def __init__(self, chat: ChatFormat, tools: Sequence[Any]) -> None:
        self._chat, self.tools = chat, list(tools)
        self._written_out = False  # whether the system prompt describes the functions
        if tools:
            try:
                chat.tool_format()
            except ConfigError:
                self._written_out = True

    def ids(self, messages: Sequence[Message]) -> list[int]:
        offered = [] if self._written_out else self.tools
        return _joining(lambda some: self._chat.messages_ids(some, offered), self._rendered(messages))

    def following_ids(self, reply: Message, new: Sequence[Message], *, stopped: bool) -> list[int]:
        rendered = self._rendered([reply, *new], begins=False)
        names = [] if self._written_out else [call["function"]["name"] for call in reply.get("tool_calls", ())]
        return _joining(lambda some: self._chat.following_ids(names, some, stopped=stopped), rendered[1:])

    def read(self, ids: Sequence[int]) -> Reply:
        if not self._written_out:
            return self._chat.read(ids, self.tools)
        reply = self._chat.read(ids)
        if reply.unfinished:
            return reply
        try:
            calls = [as_call(json.loads(text)) for text in _CALL.findall(reply.action)]
        except UNREADABLE:
            return replace(reply, malformed=True)
        message: Message = {"role": "assistant", "content": reply.action}
        if calls:
            message |= {"content": _CALL.sub("", reply.action).strip(), "tool_calls": calls}
        return replace(reply, action=json.dumps(message))

    def said(self, reply: Reply) -> Message:
        if self.tools and not reply.malformed and not reply.unfinished:
            return dict(json.loads(reply.action))
        return {"role": "assistant", "content": reply.action}

    def _rendered(self, messages: Sequence[Message], *, begins: bool = True) -> list[Message]:
        """`begins` adds the functions to the system prompt if need be."""
        rendered: list[Message] = []
        if begins and self._written_out:
            functions = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.tools)
            system = _FUNCTIONS.format(functions=functions)
            if messages and messages[0]["role"] == "system":
                system, messages = f"{messages[0]['content']}\n\n{system}", messages[1:]
            messages = [{"role": "system", "content": system}, *messages]
        # Id of a call -> its function and its place in its message.
        places: dict[str, tuple[str, int]] = {}
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "assistant":
                calls = message.get("tool_calls", ())
                places |= {call["id"]: (call["function"]["name"], at) for at, call in enumerate(calls)}
                rendered.append(self._said(content, calls, message.get("reasoning", "")))
            elif role == "tool":
                name, at = places.get(message["tool_call_id"], ("", 0))
                rendered.append(self._result(name, at, content))
            else:
                rendered.append({"role": role, "content": self._chat.cut(content) if role == "user" else content})
        return self._chat.with_system_apart(rendered)

    def _said(self, content: str, calls: Sequence[Any], reasoning: str) -> Message:
        thought = {"reasoning_content": reasoning, "thinking": reasoning} if reasoning else {}
        if self._written_out:
            texts = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls]
            return {"role": "assistant", "content": "\n".join(filter(None, [content, *texts])), **thought}
        named = [{**call, "id": call_id(at)} for at, call in enumerate(calls)]
        return {"role": "assistant", "content": content, **thought, **({"tool_calls": named} if named else {})}

    def _result(self, name: str, at: int, content: str) -> Message:
        content = self._chat.cut(content)
        if self._written_out:
            return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
        return result_message(name, content, at)


def _joining(render: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message]) -> list[int]:
    """Joins two user messages in a row if the template refuses them, as Gemma's does."""
    try:
        return render(messages)
    except ConfigError:
        joined: list[Message] = []
        for message in messages:
            if joined and message["role"] == joined[-1]["role"] == "user":
                joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{message['content']}"}
            else:
                joined.append(message)
        return render(joined)
