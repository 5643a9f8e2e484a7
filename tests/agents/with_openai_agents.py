"""An agent of OpenAI's Agents SDK, which speaks the responses API and streams."""

from typing import Any

import openai
from agents import Agent, OpenAIResponsesModel, Runner, StopAtTools, function_tool, set_tracing_disabled
from cabinet_functions import RULES, Cabinet, as_command


async def play(task: dict[str, Any], base_url: str) -> float:
    set_tracing_disabled(True)
    cabinet = Cabinet(task["id"])
    model = OpenAIResponsesModel("policy", openai.AsyncOpenAI(base_url=base_url, api_key="any"))
    agent = Agent(
        "clerk",
        instructions=RULES,
        model=model,
        tool_use_behavior=StopAtTools(stop_at_tool_names=["submit"]),
        tools=[function_tool(tool) for tool in cabinet.functions],
    )
    run = Runner.run_streamed(agent, cabinet.start, max_turns=100)
    async for _ in run.stream_events():
        pass
    return cabinet.reward


if __name__ == "__main__":
    as_command(play)
