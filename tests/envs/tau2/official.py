# ruff: noqa: E402
"""tau2's own environment and evaluators, served by a worker: what EH-Tau2 is compared with.

Each world is as in a new process, whose VPN nobody has broken. New bills are counted, or tau2's own replay would raise.
"""

import itertools
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

unused = ("pandas", "deepdiff", "dotenv", "tau2.evaluator.evaluator_nl_assertions", "tau2.registry")
sys.modules.update({name: MagicMock() for name in unused})

from loguru import logger
from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.data_model.simulation import TerminationReason
from tau2.domains.telecom import environment, tools
from tau2.evaluator import evaluator

logger.remove()
TASKS = {task.id: task for task in environment.get_tasks(None)}
VPN = environment.TelecomUserTools.default_vpn_details.model_copy()


def constructor(**kwargs):
    environment.TelecomUserTools.default_vpn_details = VPN.model_copy()
    count = itertools.count()
    tools.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(count):08x}"))
    return environment.get_environment_manual_policy(**kwargs)


evaluator.registry = SimpleNamespace(get_env_constructor=lambda _: constructor)


def begin(task_id):
    task, world = TASKS[task_id], constructor(solo_mode=True)
    world.set_state(task.initial_state.initialization_data, task.initial_state.initialization_actions, [])
    return task, world, []


def step(_, world, messages, call):
    call = ToolCall(id=str(len(messages)), name=call[0], arguments=call[1])
    messages += [AssistantMessage(role="assistant", tool_calls=[call]), world.get_response(call)]


def verdict(task, _, messages):
    run = SimpleNamespace(termination_reason=TerminationReason.AGENT_STOP, messages=messages)
    return evaluator.evaluate_simulation(run, task, evaluator.EvaluationType.ALL, True, "telecom").reward


def handle(method, params):
    """The answers to calls, and the verdict."""
    task, world, messages = begin(params["task_id"])
    for call in params["calls"]:
        step(task, world, messages, call)
    return [answer.content for answer in messages[1::2]], verdict(task, world, messages)
