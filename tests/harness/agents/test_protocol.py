"""Requests in OpenAI's two forms become one, and what can't be honoured is refused."""

import json
from typing import Any

import pytest

from harness.agents.protocol import ModelAnswer, Refusal, read_call, read_tools
from harness.agents.writing import write_answer

ASKED = {"role": "user", "content": "Open a drawer."}
CALL = {"id": "call1", "type": "function", "function": {"name": "open", "arguments": {"drawer": "é", "times": 1}}}
ANSWER = ModelAnswer("Let me see.", [CALL], "thinking", "tool_calls", 7, 3)
OPEN = {"name": "open", "description": "Opens.", "parameters": {"type": "object", "properties": {}}}


def read(api="chat", sampled_at=None, sampling="run", items=None, **body):
    body = ({"messages": [ASKED]} if api == "chat" else {"input": [ASKED]}) | body
    return read_call(json.dumps(body).encode(), api, sampled_at, sampling=sampling, items=items)


def test_an_answer_that_a_chat_repeats_is_the_message_that_was_answered():
    said = json.loads(write_answer(read(), ANSWER, {}))["choices"][0]["message"]
    assert read(messages=[ASKED, said]).messages == [ASKED, ANSWER.message]
    said["tool_calls"][0]["function"]["arguments"] = '{"times":1,"drawer":"\\u00e9"}'  # as frameworks write it again
    assert read(messages=[ASKED, said]).messages == [ASKED, ANSWER.message]


@pytest.mark.parametrize(
    "answer", [ANSWER, ModelAnswer("", [CALL]), ModelAnswer("words")], ids=["both", "call", "words"]
)
def test_an_answer_that_a_responses_request_repeats_is_the_message_that_was_answered(answer):
    items = {}
    output = json.loads(write_answer(read("responses"), answer, items))["output"]
    result = {"type": "function_call_output", "call_id": "call1", "output": [{"type": "input_text", "text": "ok"}]}
    tool = {"role": "tool", "tool_call_id": "call1", "content": "ok"}
    references = [{"type": "item_reference", "id": item["id"]} for item in output]
    for repeated in (output, references):
        call = read("responses", items=items, input=[ASKED, *repeated, result], instructions="Be brief.")
        assert call.messages == [{"role": "system", "content": "Be brief."}, ASKED, answer.message, tool]
    with pytest.raises(Refusal, match="no response of this session has an item"):
        read("responses", input=[ASKED, *references])


def test_the_events_of_a_response_have_its_words_and_its_calls_whole():
    sent = write_answer(read("responses", stream=True), ANSWER, {}).decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in sent if line.startswith("data: ")]
    found = {event["type"].removeprefix("response."): event for event in events}
    _, message, call = found["completed"]["response"]["output"]
    words = [found[f"content_part.{name}"]["part"]["text"] for name in ("added", "done")]
    assert [*words, found["output_text.delta"]["delta"], found["output_text.done"]["text"]] == [
        "",
        *["Let me see."] * 3,
    ]
    made = found["function_call_arguments.done"]
    assert made["arguments"] == found["function_call_arguments.delta"]["delta"] == call["arguments"]
    assert {event["item_id"] for event in events if "item_id" in event} == {message["id"], call["id"]}
    assert [event["sequence_number"] for event in events] == [*range(len(events))]


@pytest.mark.parametrize("arguments", ["[" * 5000 + "]" * 5000, '{"drawer": ', "[1]"])
def test_arguments_that_are_no_object_stay_text(arguments):
    said = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "open", "arguments": arguments}}]}
    assert read(messages=[ASKED, said]).messages[1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_content_may_be_a_text_its_parts_a_refusal_or_null():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b\ud83d"}]
    refusal = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "refusal", "refusal": "No."},
        {"type": "text", "text": "x"},
    ]
    said = [
        {"role": "developer", "content": parts},
        *({"role": "assistant", "content": c} for c in (None, refusal)),
        ASKED,
    ]
    found = [message["content"] for message in read(messages=said).messages]
    assert found == ["a\nb\\ud83d", "", "No.\nx", ASKED["content"]]
    assert read("responses", input="Hi").messages == [{"role": "user", "content": "Hi"}]


def test_tools_have_one_form_and_the_choice_limits_them():
    shut = {"name": "shut"}
    in_chat = [{"type": "function", "function": OPEN | {"strict": True}}, {"type": "function", "function": shut}]
    flat = [{"type": "function", **OPEN, "strict": True}, {"type": "function", **shut}]
    wanted = [{"type": "function", "function": OPEN}, {"type": "function", "function": shut}]
    assert read(tools=in_chat).tools == read("responses", tools=flat).tools == wanted
    assert read(tools=in_chat, tool_choice="required").tools == wanted
    assert read(tools=in_chat, tool_choice="none").tools == []
    named = {"type": "function", "function": {"name": "shut"}}
    assert read_tools({"tools": in_chat, "tool_choice": named}, "chat") == (wanted[1:], "shut")
    assert read("responses", tools=flat, tool_choice={"type": "function", "name": "open"}).tools == wanted[:1]


def test_the_runs_temperature_may_be_named():
    assert read(sampled_at=0.7, temperature=0.7, sampling="strict").overridden == ()
    assert read(sampled_at=0.7, temperature=1.0).overridden == ("temperature",)
    with pytest.raises(Refusal, match="temperature"):
        read(sampled_at=0.7, temperature=1.0, sampling="strict")


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "seed": 7},
        {"frequency_penalty": 0.1, "presence_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"5": -100}},
        {"reasoning_effort": "low", "verbosity": "low", "guided_json": {}, "response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        {"api": "responses", "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_object"}}},
        {"api": "responses", "truncation": "auto", "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_the_run_samples_in_its_own_way_whatever_a_request_asks_for(body):
    assert set(read(**body).overridden) == body.keys() - {"api"}
    with pytest.raises(Refusal, match="left out"):
        read(**body, sampling="strict")
    assert read(top_p=1, top_k=-1, min_p=0.0, response_format={"type": "text"}, sampling="strict").overridden == ()


def test_the_choice_may_be_some_of_the_tools():
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    some = {"mode": "required", "tools": tools[:2]}
    choice = {"type": "allowed_tools", "allowed_tools": some}
    assert read_tools({"tools": tools, "tool_choice": choice}, "chat") == (tools[:2], "required")
    flat = [{"type": "function", "name": name} for name in "abc"]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": flat[1:]}
    assert read("responses", tools=flat, tool_choice=choice).tools == tools[1:]
    with pytest.raises(Refusal, match="tool_choice"):
        read(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})


@pytest.mark.parametrize(
    ("named", "body"),
    [
        ("'n'", {"n": 2}),
        ("'top_logprobs'", {"top_logprobs": 5}),
        ("'functions'", {"functions": []}),
        ("most tokens", {"max_tokens": 0}),
        ("most tokens", {"max_tokens": True}),
        ("'stop'", {"stop": ["a", ""]}),
        ("tool", {"tools": [{"type": "custom", "custom": {}}]}),
        ("'tool_choice'", {"tool_choice": {"type": "function", "function": {"name": "shut"}}}),
        ("role", {"messages": [{"role": "narrator", "content": "."}]}),
        ("image_url", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("form", {"messages": [{"role": "user", "content": 3}]}),
        ("form", {"stream_options": True}),
    ],
)
def test_what_cant_be_honoured_is_refused_by_its_name(named: str, body: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=named) as refused:
        read(**body)
    assert refused.value.status == 400


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"messages": 1}', b'{"n": 1}'])
def test_a_broken_body_is_refused(content):
    with pytest.raises(Refusal):
        read_call(content, "chat")
