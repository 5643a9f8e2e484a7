"""An agent whose functions are those of an MCP server."""

import json
from typing import Any

import openai
from cabinet_functions import RULES, Cabinet, as_command
from mcp import Client
from mcp.server.mcpserver import MCPServer


async def play(task: dict[str, Any], base_url: str) -> float:
    cabinet, server = Cabinet(task["id"]), MCPServer("cabinet")
    for function in cabinet.functions:
        server.add_tool(function)
    model = openai.AsyncOpenAI(base_url=base_url, api_key="any")
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": cabinet.start}]
    async with Client(server) as mcp:
        listed = (await mcp.list_tools()).tools
        functions = [
            {"name": one.name, "description": one.description, "parameters": one.input_schema} for one in listed
        ]
        tools = [{"type": "function", "function": function} for function in functions]
        while not cabinet.over:
            answer = await model.chat.completions.create(model="policy", messages=messages, tools=tools)
            message = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                result = await mcp.call_tool(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result.content[0].text})
            if not message.tool_calls:
                break
    return cabinet.reward


if __name__ == "__main__":
    as_command(play)
