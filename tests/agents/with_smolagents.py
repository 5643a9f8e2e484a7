"""A tool-calling agent of smolagents."""

from typing import Any

from cabinet_functions import RULES, Cabinet, as_command
from smolagents import AgentError, OpenAIServerModel, ToolCallingAgent, tool


def play(task: dict[str, Any], base_url: str) -> float:
    cabinet = Cabinet(task["id"])
    model = OpenAIServerModel("policy", api_base=base_url, api_key="any")
    agent = ToolCallingAgent(
        [tool(function) for function in cabinet.functions], model, instructions=RULES, max_steps=100, verbosity_level=0
    )
    try:
        for _ in agent.run(cabinet.start, stream=True):
            if cabinet.over:
                agent.interrupt()
    except AgentError:  # it was interrupted
        if not cabinet.over:
            raise
    return cabinet.reward


if __name__ == "__main__":
    as_command(play)
