"""Writes a model's answer as a chat completion or a response, whole or as events."""

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from eh_gym.surrogates import escaped
from harness.agents.protocol import Json, ModelAnswer, ModelCall

_EMPTY: dict[str, Json] = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}


def write_answer(call: ModelCall, answer: ModelAnswer, items: Json) -> bytes:
    """The body of an answer: JSON, or all of its events. Adds what a response puts out to `items`."""
    if call.api == "chat":
        if call.stream:
            return _events(_chat_chunks(call, answer), "data: [DONE]\n\n")
        return json.dumps(_completion(call, answer)).encode()
    response = _response(call, answer)
    items |= {item["id"]: item for item in response["output"]}
    return _events(_response_events(response)) if call.stream else json.dumps(response).encode()


def _events(events: Iterable[Json], last: str = "") -> bytes:
    named = ((f"event: {event['type']}\n" if "type" in event else "", json.dumps(event)) for event in events)
    return ("".join(f"{name}data: {data}\n\n" for name, data in named) + last).encode()


def written_calls(calls: Iterable[Json]) -> list[Json]:
    return [
        call | {"function": call["function"] | {"arguments": _json_text(call["function"]["arguments"])}}
        for call in calls
    ]


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _completion(call: ModelCall, answer: ModelAnswer) -> Json:
    message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        message |= {"content": answer.text or None, "tool_calls": written_calls(answer.calls)}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    choice = {"index": 0, "finish_reason": answer.finish_reason, "message": message, "logprobs": _logprobs(answer)}
    return _head(call, "chat.completion") | {"choices": [choice], "usage": _usage(answer)}


def _chat_chunks(call: ModelCall, answer: ModelAnswer) -> Iterator[Json]:
    head = _head(call, "chat.completion.chunk")

    def chunk(delta: Json, finish: str | None = None, logprobs: Json | None = None) -> Json:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}]}

    thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
    yield chunk({"role": "assistant", "content": answer.text} | thought, logprobs=_logprobs(answer))
    if answer.calls:
        yield chunk({"tool_calls": [{"index": at} | made for at, made in enumerate(written_calls(answer.calls))]})
    yield chunk({}, answer.finish_reason)
    if call.usage_in_stream:
        yield head | {"choices": [], "usage": _usage(answer)}


def _head(call: ModelCall, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": call.model,
        "system_fingerprint": None,
    }


def _usage(answer: ModelAnswer, asked: str = "prompt", wrote: str = "completion") -> Json:
    prompt, written = answer.prompt_tokens, answer.completion_tokens  # Vercel's SDK takes no null
    return {f"{asked}_tokens": prompt, f"{wrote}_tokens": written, "total_tokens": prompt + written}


def _logprobs(answer: ModelAnswer) -> Json | None:
    if answer.logprobs is None:
        return None
    tokens = [
        {"token": text, "logprob": logprob, "bytes": list(escaped(text).encode()), "top_logprobs": []}
        for text, logprob in answer.logprobs
    ]
    return {"content": tokens, "refusal": None}


def _response(call: ModelCall, answer: ModelAnswer) -> Json:
    name, cut = uuid.uuid4().hex, answer.finish_reason == "length"
    status = "incomplete" if cut else "completed"
    output: list[Json] = []
    if answer.reasoning:
        thought = {"type": "summary_text", "text": answer.reasoning}
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": [thought], "status": status})
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": [part]}
        )
    output += [
        {"type": "function_call", "id": f"fc_{name}_{at}", "call_id": made["id"], "status": status, **made["function"]}
        for at, made in enumerate(written_calls(answer.calls))
    ]
    usage = _usage(answer, "input", "output")
    usage["input_tokens_details"], usage["output_tokens_details"] = {"cached_tokens": 0}, {"reasoning_tokens": 0}
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": call.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }


def _response_events(response: Json) -> Iterator[Json]:
    begun = response | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for at, item in enumerate(response["output"]):
        place = {"output_index": at, "item_id": item["id"]}
        added = item | _EMPTY[item["type"]] | {"status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": at, "item": added})
        if item["type"] == "message":
            [part] = item["content"]
            where = place | {"content_index": 0}
            events += [
                where | {"type": "response.content_part.added", "part": part | {"text": ""}},
                where | {"type": "response.output_text.delta", "delta": part["text"], "logprobs": []},
                where | {"type": "response.output_text.done", "text": part["text"], "logprobs": []},
                where | {"type": "response.content_part.done", "part": part},
            ]
        elif item["type"] == "function_call":
            made = {"name": item["name"], "arguments": item["arguments"]}
            events += [
                place | {"type": "response.function_call_arguments.delta", "delta": item["arguments"]},
                place | {"type": "response.function_call_arguments.done", **made},
            ]
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    events.append({"type": f"response.{response['status']}", "response": response})
    for number, event in enumerate(events):
        yield event | {"sequence_number": number}
