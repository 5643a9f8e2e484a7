"""An agent's calls of a hosted model. What either side says reaches the other one as it is.

Read is only what K, the log and the limits need. Some frameworks drop fields of the model's messages that its server
wants back: Gemini's ``extra_content``, DeepSeek's ``reasoning_content``, OpenRouter's ``reasoning_details``. Those are
put back.
"""

from collections.abc import Mapping
from typing import Any

from eh_gym.surrogates import escaped
from harness.agents.protocol import (
    LIMITS,
    Api,
    Json,
    ModelCall,
    Sampling,
    chat_messages,
    of_openais_form,
    read_options,
    read_tools,
    response_messages,
)

_DECIDED_HERE = {"model", "stream", "stream_options", *LIMITS}
_ALWAYS = ("messages", "tools", "tool_choice", "stop")  # also if the run decides how is sampled
_STANDARD = {"role", "content", "refusal", "annotations", "audio", "function_call", "tool_calls", "name"}


def read_hosted_call(
    content: bytes,
    api: Api,
    temperature: float | None,
    *,
    sampling: Sampling,
    items: Mapping[str, Json],
    said: Mapping[str, dict[int, Json]],
) -> ModelCall:
    """Reads the body of a request for a hosted model, with the arguments of `read_call`.

    The sampling may also be "agent", which passes on all options. `said` is what `remember` knows of the server's
    messages.
    """
    body, alike = read_options(content, api, temperature, sampling)
    with of_openais_form():
        request = body if api == "chat" else _in_chat_form(body, items)
        messages = [_restored(message, at, said) for at, message in enumerate(chat_messages(request))]
        sent = _ALWAYS if sampling != "agent" else request.keys() - _DECIDED_HERE
        return ModelCall(
            messages=[{"role": _role(message), "content": _shown(message.get("content"))} for message in messages],
            tools=list(request.get("tools", ())),
            request={name: value for name, value in request.items() if name in sent} | {"messages": messages},
            **alike,
        )


def remember(said: dict[str, dict[int, Json]], message: Json, at: int) -> None:
    """Adds a server's message, whose place in the conversation is `at`, to what `read_hosted_call` puts back."""
    for name in _names(message):
        said.setdefault(name, {})[at] = message


def words(content: Any, kind: str = "text") -> str:
    """The text of a message's content, or that of its parts of another kind."""
    if not isinstance(content, list):
        return (content or "") if kind == "text" else ""
    parts = (part[kind] for part in content if part["type"] == kind)
    return "".join(part if isinstance(part, str) else words(part) for part in parts)


def thought(message: Mapping[str, Any]) -> str:
    """The thought beside a server's answer. vLLM and OpenRouter call it `reasoning`, DeepSeek and SGLang
    `reasoning_content`; Mistral's is a part of the content.
    """
    apart = message.get("reasoning") or message.get("reasoning_content")
    return apart if isinstance(apart, str) else words(message.get("content"), "thinking")


def _names(message: Json) -> list[str]:
    """A message is known again by the ids of its calls, or else by its text."""
    return [str(call["id"]) for call in message.get("tool_calls") or ()] or [words(message.get("content"))]


def _restored(message: Json, at: int, said: Mapping[str, dict[int, Json]]) -> Json:
    if message["role"] != "assistant":
        return message
    found = next((said[name] for name in _names(message) if name in said), {})
    known = found.get(at) or (next(iter(found.values())) if len(found) == 1 else {})  # some servers number calls anew
    restored = {name: value for name, value in known.items() if name not in _STANDARD} | message
    if message.get("tool_calls"):
        calls = {call["id"]: call for call in known.get("tool_calls") or ()}
        restored["tool_calls"] = [calls.get(call["id"], {}) | call for call in message["tool_calls"]]
    return restored


def _role(message: Json) -> str:
    return "system" if message["role"] == "developer" else str(message["role"])


def _shown(content: Any) -> str:
    if not isinstance(content, list):
        return escaped(content or "")
    return "\n".join(escaped(part["text"]) if "text" in part else f"[{part['type']}]" for part in content)


def _in_chat_form(body: Json, items: Mapping[str, Json]) -> Json:
    """A request for a response as one for a chat completion, with the options that have another name there."""
    text, tools, choice = body.get("text", {}), *read_tools(body, "responses", ("strict",))
    other = {"input", "instructions", "text", "reasoning", "truncation", "include", "background", "max_tool_calls"}
    chat = {name: value for name, value in body.items() if name not in other | {"tools", "tool_choice"}}
    chat["messages"] = [
        message | {"role": _role(message), "content": _content(message["content"])}
        for message in response_messages(body, items)
    ]
    options = {"verbosity": text.get("verbosity"), "reasoning_effort": body.get("reasoning", {}).get("effort")}
    chat |= {name: value for name, value in options.items() if value is not None}
    if form := dict(text.get("format", ())):
        kind = form.pop("type")
        chat["response_format"] = {"type": kind} | ({kind: form} if form else {})
    if not tools:  # servers refuse options of functions without a function
        chat.pop("parallel_tool_calls", None)
        return chat
    named = {"type": "function", "function": {"name": choice}}
    how = {} if choice == "auto" else {"tool_choice": choice if choice == "required" else named}
    return chat | {"tools": tools} | how


def _content(parts: Any) -> Any:
    if not isinstance(parts, list):
        return parts
    if all("text" in part for part in parts):
        return "\n".join(part["text"] for part in parts)
    return [_part(part) for part in parts]


def _part(part: Json) -> Json:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": part["text"]} if "text" in part else part
