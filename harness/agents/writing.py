"""Writes a model's answer as a chat completion or a response, whole or as events."""

import json
import time
import uuid
from collections.abc import Iterable, Iterator

from eh_gym.surrogates import escaped
from harness.agents.hosted import thought, words
from harness.agents.protocol import Json, ModelAnswer, ModelCall

# Why a response is incomplete, by why a completion is.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_EMPTY: dict[str, Json] = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}


def write_answer(call: ModelCall, answer: ModelAnswer, items: Json) -> bytes:
    """The body of an answer: JSON, or all of its events. Adds what a response puts out to `items`."""
    whole = answer.body or json.dumps(_completion(call, answer))
    if call.api == "chat":
        chunks = _chat_chunks(json.loads(whole), usage=call.usage_in_stream)
        return _events(chunks, "data: [DONE]\n\n") if call.stream else whole.encode()
    response = _response(json.loads(whole))
    items |= {item["id"]: item for item in response["output"]}
    return _events(_response_events(response)) if call.stream else json.dumps(response).encode()


def _events(events: Iterable[Json], last: str = "") -> bytes:
    named = ((f"event: {event['type']}\n" if "type" in event else "", json.dumps(event)) for event in events)
    return ("".join(f"{name}data: {data}\n\n" for name, data in named) + last).encode()


def _written(call: Json) -> Json:
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _completion(call: ModelCall, answer: ModelAnswer) -> Json:
    message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        message |= {"content": answer.text or None, "tool_calls": list(map(_written, answer.calls))}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    choice = {"index": 0, "finish_reason": answer.finish_reason, "message": message, "logprobs": _logprobs(answer)}
    prompt, written = answer.prompt_tokens, answer.completion_tokens  # Vercel's SDK takes no null
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": call.model,
        "system_fingerprint": None,
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


def _chat_chunks(completion: Json, *, usage: bool) -> Iterator[Json]:
    head = {**completion, "object": "chat.completion.chunk"}
    used = head.pop("usage", None)
    for choice in completion["choices"]:
        rest, message = dict(choice), dict(choice["message"])
        del rest["message"]
        if message.get("tool_calls"):
            message["tool_calls"] = [{"index": at} | call for at, call in enumerate(message["tool_calls"])]
        yield head | {"choices": [rest | {"delta": message, "finish_reason": None}]}
        yield head | {"choices": [rest | {"delta": {}, "logprobs": None}]}
    if usage and used:
        yield head | {"choices": [], "usage": used}


def _logprobs(answer: ModelAnswer) -> Json | None:
    if answer.logprobs is None:
        return None
    tokens = [
        {"token": text, "logprob": logprob, "bytes": list(escaped(text).encode()), "top_logprobs": []}
        for text, logprob in answer.logprobs
    ]
    return {"content": tokens, "refusal": None}


def _response(completion: Json) -> Json:
    name, choice, used = uuid.uuid4().hex, completion["choices"][0], completion.get("usage") or {}
    message, why = choice["message"], _INCOMPLETE.get(choice.get("finish_reason"))
    status = "incomplete" if why else "completed"
    output: list[Json] = []
    if reasoning := thought(message):
        summary = [{"type": "summary_text", "text": reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": summary, "status": status})
    text, refused, calls = words(message.get("content")), message.get("refusal"), message.get("tool_calls") or ()
    if text or refused or not calls:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        part = {"type": "refusal", "refusal": refused} if refused else part
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": [part]}
        )
    for at, call in enumerate(calls):
        called = {"type": "function_call", "id": f"fc_{name}_{at}", "call_id": call["id"], "status": status}
        output.append(called | call["function"])
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": why} if why else None,
        "instructions": None,
        "metadata": {},
        "model": completion.get("model"),
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": used.get("prompt_tokens") or 0,
            "output_tokens": used.get("completion_tokens") or 0,
            "total_tokens": used.get("total_tokens") or 0,
            "input_tokens_details": {"cached_tokens": 0} | (used.get("prompt_tokens_details") or {}),
            "output_tokens_details": {"reasoning_tokens": 0} | (used.get("completion_tokens_details") or {}),
        },
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
            where, kind = place | {"content_index": 0}, part["type"]
            field = "refusal" if kind == "refusal" else "text"
            more: Json = {} if kind == "refusal" else {"logprobs": []}
            events += [
                where | {"type": "response.content_part.added", "part": part | {field: ""}},
                where | {"type": f"response.{kind}.delta", "delta": part[field], **more},
                where | {"type": f"response.{kind}.done", field: part[field], **more},
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
