"""An agent that is a loop around the openai client."""

import json
from typing import Any

import openai
from cabinet_functions import RULES, Cabinet, as_command


def play(task: dict[str, Any], base_url: str) -> float:
    """Plays until a code is submitted, or the model calls nothing."""
    cabinet = Cabinet(task["id"])
    functions = {function.__name__: function for function in cabinet.functions}
    schema = {"type": "object", "properties": {"argument": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in functions]
    client = openai.OpenAI(base_url=base_url, api_key="any")
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": cabinet.start}]
    while not cabinet.over:
        message = client.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            result = functions[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls:
            break
    return cabinet.reward


if __name__ == "__main__":
    as_command(play)
