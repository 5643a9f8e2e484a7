"""A ReAct agent of LangGraph."""

from typing import Any

from cabinet_functions import RULES, Cabinet, as_command
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


async def play(task: dict[str, Any], base_url: str) -> float:
    cabinet = Cabinet(task["id"])
    model = ChatOpenAI(model="policy", base_url=base_url, api_key="any")
    tools = [tool(function, return_direct=function == cabinet.submit) for function in cabinet.functions]
    agent = create_agent(model, tools, system_prompt=RULES)
    messages = {"messages": [{"role": "user", "content": cabinet.start}]}
    await agent.ainvoke(messages, {"recursion_limit": 200})
    return cabinet.reward


if __name__ == "__main__":
    as_command(play)
