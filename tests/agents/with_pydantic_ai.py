"""An agent of Pydantic AI."""

from typing import Any

from cabinet_functions import RULES, Cabinet, as_command
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def play(task: dict[str, Any], base_url: str) -> float:
    cabinet = Cabinet(task["id"])
    model = OpenAIChatModel("policy", provider=OpenAIProvider(base_url=base_url, api_key="any"))
    *tools, submit = cabinet.functions
    agent = Agent(model, instructions=RULES, tools=tools, output_type=[ToolOutput(submit, name="submit"), str])
    await agent.run(cabinet.start)
    return cabinet.reward


if __name__ == "__main__":
    as_command(play)
