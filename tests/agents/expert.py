"""Plays the cabinet behind functions perfectly, from what a request holds, in place of a model."""

import re
from typing import Any

from harness.agents.protocol import ModelAnswer, ModelCall


def expert(call: ModelCall) -> ModelAnswer:
    """The right answer to a request."""
    said = [message["content"] for message in call.messages if message["role"] != "system"]
    found = re.search(r"start (\w)$", said[0])
    assert found is not None
    drawer = found[1]
    name, argument = "open", drawer
    for message in call.messages[1:]:
        if message["role"] != "tool" and not message["content"].startswith("Observation:"):
            continue
        result, *words = message["content"].removeprefix("Observation:").split()
        if result == "ok":
            name, argument = ("read", "") if name == "open" else ("open", drawer)
        elif result == "next":
            drawer = words[0]
            name, argument = "close", ""
        elif result == "code":
            name, argument = "submit", "".join(words)
    return ModelAnswer("", [_call(f"call{len(call.messages):05d}", name, argument)], finish_reason="tool_calls")


def _call(name: str, function: str, argument: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": function, "arguments": {"argument": argument}}}
