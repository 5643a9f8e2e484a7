# ruff: noqa: E402
"""tau2's own environment and evaluators. Each world is as in a new process, and bills are counted: see docs/tau2.md."""

import itertools
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

unused = ("pandas", "deepdiff", "dotenv", "tau2.evaluator.evaluator_nl_assertions", "tau2.registry")
sys.modules.update({name: MagicMock() for name in unused})

from loguru import logger
from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.data_model.simulation import Results, TerminationReason
from tau2.domains.telecom import environment, tools
from tau2.evaluator import evaluator

logger.remove()
TASKS = {task.id: task for task in environment.get_tasks(None)}
VPN = environment.TelecomUserTools.default_vpn_details.model_copy()


def constructor(**kwargs):
    environment.TelecomUserTools.default_vpn_details, count = VPN.model_copy(), itertools.count()
    tools.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(count):08x}"))
    return environment.get_environment_manual_policy(**kwargs)


evaluator.registry = SimpleNamespace(get_env_constructor=lambda _: constructor)


def begin(task_id):
    world, start = constructor(solo_mode=True), TASKS[task_id].initial_state
    world.set_state(start.initialization_data, start.initialization_actions, [])
    return TASKS[task_id], world, []


def step(_, world, messages, call):
    call = ToolCall(id=str(len(messages)), name=call[0], arguments=call[1])
    messages += [AssistantMessage(role="assistant", tool_calls=[call]), world.get_response(call)]


def ended(messages):
    return SimpleNamespace(termination_reason=TerminationReason.AGENT_STOP, messages=messages)


def verdict(task, run):
    return evaluator.evaluate_simulation(run, task, evaluator.EvaluationType.ALL, True, "telecom").reward


def handle(method, params):
    if method == "load":
        results = Results.load(params["file"])
        tasks = {task.id: task for task in results.tasks}
        return [[run.reward_info.reward, verdict(tasks[run.task_id], run)] for run in results.simulations]
    played = begin(params["task_id"])
    for call in params["calls"]:
        step(*played, call)
    return [answer.content for answer in played[2][1::2]], verdict(played[0], ended(played[2]))
