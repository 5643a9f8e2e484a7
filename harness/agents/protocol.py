"""Reads requests of OpenAI's chat completions and responses, as far as agent frameworks use them.

Both APIs become one form. The arguments of a call are an object, because frameworks repeat a call's JSON with other
spaces. So a model's answer in a later request equals `ModelAnswer.message`. What a run can't honour is refused or
ignored.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from eh_gym.errors import EHError
from eh_gym.surrogates import escaped

Api = Literal["chat", "responses"]
Sampling = Literal["run", "strict", "agent"]
Json = dict[str, Any]

MODEL = "policy"
"""The model's name. A request may give any other."""

OVER = 404
"""The status of every answer after the end of an episode. Some frameworks retry a 400, 403 or 410."""

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

# The options of a request, in both forms. A null counts as no option.
_READ = {
    *("messages", "input", "instructions", "model", "tools", "tool_choice", "stop", "stream_options"),
    *(*LIMITS, "max_tool_calls"),
}
_HARMLESS = {
    *("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "user"),
}
# Other values than these are refused, also for a hosted model.
_SERVED: dict[str, tuple[Any, ...]] = {
    **{"n": (1,), "stream": (True, False), "store": (True, False), "background": (False,)},
    "include": ([], ["reasoning.encrypted_content"]),
    **dict.fromkeys(("conversation", "previous_response_id", "prompt"), ()),
}
# Other values than these are refused.
_LIMITED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("logprobs", "parallel_tool_calls"), (True, False)),
    **{"top_logprobs": (0,), "modalities": (["text"],)},
    **dict.fromkeys(("audio", "functions", "function_call"), ()),
    **_SERVED,
}
# Other values than these, and other options, are ignored. If the sampling is strict, they are refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{
        "top_p": (1,),
        "top_k": (-1, 0),
        "min_p": (0,),
        "logit_bias": ({},),
        "reasoning": ({},),
        "repetition_penalty": (1,),
    },
    **{"frequency_penalty": (0,), "presence_penalty": (0,), "truncation": ("disabled",)},
    **{"response_format": ({"type": "text"},), "text": ({}, {"format": {"type": "text"}})},
}


class Refusal(EHError):
    """An error for the client: an HTTP status and OpenAI's error object."""

    def __init__(self, message: str, *, status: int = 400, code: str = "unsupported_value") -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def body(self) -> Json:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


def budget_used_up(k: int) -> Refusal:
    return Refusal(
        f"The budget of {k} model calls is used up; the episode is over.", status=OVER, code="horizon_reached"
    )


@dataclass(frozen=True)
class ModelCall:
    """A request to the model.

    Attributes:
        messages: The conversation. Each message has ``"role"`` (system, user, assistant or tool) and ``"content"``, a
            text. An assistant's may have ``"tool_calls"``, a tool's has ``"tool_call_id"``.
        tools: The functions on offer, in chat form, after `tool_choice`.
        max_tokens: The most tokens of the answer, or None.
        stop: Texts that end the answer.
        stream: Whether the answer is sent as events.
        api: The form of the request and of its answer.
        overridden: The options that are ignored.
        request: What a hosted model gets: the body of a chat completion.
    """

    messages: list[Json]
    tools: list[Json] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    api: Api = "chat"
    body_hash: str = ""
    logprobs: bool = False
    model: str = MODEL
    usage_in_stream: bool = False
    overridden: tuple[str, ...] = ()
    request: Json = field(default_factory=dict)


@dataclass(frozen=True)
class ModelAnswer:
    """What the model wrote.

    Attributes:
        calls: The calls in chat form, ``{"id", "type": "function", "function": {"name", "arguments"}}``. Arguments are
            objects; ids are unique in a session.
        prompt_tokens: The number of tokens of the conversation; 0 if it is not known.
        completion_tokens: The number of sampled tokens.
        logprobs: Each sampled token's text and log-probability; None if they are not shown.
        body: The answer of a hosted model's server: a chat completion as JSON, which the agent gets as it is.
    """

    text: str = ""
    calls: list[Json] = field(default_factory=list)
    reasoning: str = ""
    finish_reason: Literal["stop", "length", "tool_calls"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: list[tuple[str, float]] | None = None
    body: str = ""

    @property
    def message(self) -> Json:
        """The message as later requests of the session repeat it."""
        message = {"role": "assistant", "content": self.text}
        return message | ({"tool_calls": self.calls} if self.calls else {})


class AgentProgram(Protocol):
    """An episode's agent, as a rollout sees it: ``info["agent_program"]`` of a reset."""

    def waiting(self) -> list[ModelCall]:
        """The agent's further requests, in the order in which the next steps return them."""
        ...

    def stop_agent(self, why: str) -> None:
        """Ends the episode because of K (`why` is "horizon") or another reason: the agent is soon killed."""
        ...

    def verdict(self) -> tuple[str, float, bool, bool, Json]:
        """Waits some seconds for a stopped agent's end, and returns its verdict as a step does."""
        ...


def model_list(name: str = MODEL) -> Json:
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "elastic-horizon"}]}


def read_call(
    content: bytes,
    api: Api,
    temperature: float | None = None,
    *,
    sampling: Sampling = "run",
    items: Mapping[str, Json] | None = None,
) -> ModelCall:
    """Reads the body of a request. `items` are what earlier responses have put out, by its ids.

    Of the options for the model, the sampling "run" ignores those that differ from the run's `temperature` and
    defaults, and "strict" refuses them.
    """
    body, alike = read_options(content, api, temperature, sampling)
    with of_openais_form():
        messages = chat_messages(body) if api == "chat" else response_messages(body, items or {})
        tools, _ = read_tools(body, api)
        return ModelCall(
            messages=[_message(message) for message in messages],
            tools=tools,
            stop=_stops(body.get("stop", ())),
            logprobs=body.get("logprobs", False),
            **alike,
        )


def read_options(content: bytes, api: Api, temperature: float | None, sampling: Sampling) -> tuple[Json, Json]:
    """The body of a request, and the fields of its `ModelCall` that do not depend on who answers it."""
    body = _body(content)
    overridden = _overridden(body, temperature, sampling)
    with of_openais_form():
        return body, {
            "max_tokens": next((_positive(body[name]) for name in LIMITS if name in body), None),
            "stream": body.get("stream", False),
            "api": api,
            "body_hash": hashlib.sha256(api.encode() + content).hexdigest(),
            "model": _string(body.get("model", MODEL)),
            "usage_in_stream": bool(body.get("stream_options", {}).get("include_usage")),
            "overridden": overridden,
        }


def _body(content: bytes) -> Json:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object", code="invalid_json")
    return {name: value for name, value in body.items() if value is not None}


def _overridden(body: Json, temperature: float | None, sampling: Sampling) -> tuple[str, ...]:
    """The options that are ignored. "agent" ignores none. Raises Refusal."""
    allowed = _LIMITED | _NEUTRAL | {"temperature": (temperature,)}
    refused = _SERVED if sampling == "agent" else _LIMITED
    overridden = []
    for name, value in body.items():
        if name in _READ | _HARMLESS or value in allowed.get(name, ()):
            continue
        if name in refused or sampling == "strict":
            values = [json.dumps(value) for value in allowed.get(name, ()) if value is not None]
            choices = " or ".join([*values, "left out"])
            raise Refusal(f"{name!r} must be {choices}, got {_short(value)}")
        if sampling == "run":
            overridden.append(name)
    return tuple(overridden)


@contextmanager
def of_openais_form() -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise Refusal(f"the request is not of OpenAI's form: {error!r}", code="invalid_value") from None


def chat_messages(body: Json) -> list[Json]:
    if not isinstance(body["messages"], list) or not body["messages"]:
        raise Refusal("'messages' must be a list with a message", code="invalid_value")
    return body["messages"]


def _message(message: Json) -> Json:
    role, text = message["role"], _text_of_content(message.get("content"))
    if role in ("system", "developer", "user"):
        return {"role": "user" if role == "user" else "system", "content": text}
    if role == "tool":
        return {"role": "tool", "tool_call_id": _string(message["tool_call_id"]), "content": text}
    if role == "assistant":
        calls = [read_function_call(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    raise Refusal(f"a message's role must be system, developer, user, assistant or tool, got {_short(role)}")


def response_messages(body: Json, known: Mapping[str, Json]) -> list[Json]:
    """The messages of a request for a response, in chat form but for the parts of their contents.

    Calls after an assistant's words belong to its message. A reference stands for an item that is known.
    """
    items, messages = body["input"], list[Json]()
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        if item.get("type") == "item_reference":
            if item["id"] not in known:
                raise Refusal(f"no response of this session has an item {_short(item['id'])}; send the item itself")
            item = known[item["id"]]
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item["role"], "content": item.get("content")})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind != "reasoning":
            raise Refusal(f"an item must be a message, a function call or its output, got {_short(kind)}")
    if not messages:
        raise Refusal("'input' must have a message", code="invalid_value")
    return messages


def read_function_call(name: Any, function: Json) -> Json:
    """A call in chat form, with its arguments as an object if they are one."""
    text = _string(function["arguments"])
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None  # not a call of the model, which has an object
    function = {
        "name": _string(function["name"]),
        "arguments": arguments if isinstance(arguments, dict) else text,
    }
    return {"id": _string(name), "type": "function", "function": function}


def _text_of_content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return escaped(content or "")
    read = []
    for part in content:
        kind = part["type"]
        if kind in ("text", "input_text", "output_text", "refusal"):
            read.append(_string(part["refusal" if kind == "refusal" else "text"]))
        elif kind not in ("thinking", "redacted_thinking", "reasoning"):  # a thought
            raise Refusal(f"the model reads and writes text only, got a part of type {_short(kind)}")
    return "\n".join(read)


def read_tools(body: Json, api: Api, more: tuple[str, ...] = ()) -> tuple[list[Json], str]:
    """The functions that the model may call, in chat form, and the choice: "none" (then there are none), "auto",
    "required", or the name of the only one.
    """

    def function_of(tool: Json) -> Json:
        return tool["function"] if api == "chat" else tool

    tools: list[Json] = []
    kept_names = ("name", "description", "parameters", *more)
    for tool in body.get("tools", ()):
        if tool["type"] != "function":
            raise Refusal(f"a tool must be a function, got {_short(tool['type'])}")
        function = function_of(tool)
        kept = {name: function[name] for name in kept_names if function.get(name) is not None}
        tools.append({"type": "function", "function": {"name": _string(function["name"]), **kept}})
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, str):
        choices: dict[str, list[Json]] = {"none": [], "auto": tools, "required": tools}
        if choice in choices:
            return choices[choice], choice
    elif choice["type"] == "allowed_tools":
        allowed = choice["allowed_tools"] if api == "chat" else choice
        names = [function_of(tool)["name"] for tool in allowed["tools"]]
        if allowed["mode"] in ("auto", "required") and (named := [t for t in tools if t["function"]["name"] in names]):
            return named, allowed["mode"]
    else:
        name = function_of(choice)["name"]
        if named := [tool for tool in tools if tool["function"]["name"] == name]:
            return named, name
    raise Refusal(f"'tool_choice' must be none, auto, required or a function on offer, got {_short(choice)}")


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(_string(text) for text in stop)
    if len(stops) > 4 or not all(stops):
        raise Refusal("'stop' must be up to four texts that are not empty")
    return stops


def _positive(limit: Any) -> int:
    if type(limit) is not int or limit < 1:
        raise Refusal(f"the most tokens of an answer must be a whole number >= 1, got {_short(limit)}")
    return limit


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {_short(value)}")
    return escaped(value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
