# ruff: noqa: E402
"""tau2's own runner, agent and evaluators. A world is as in a new process, and bills are counted: see docs/tau2.md."""

import itertools
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

unused = "pandas deepdiff dotenv tau2.evaluator.evaluator_nl_assertions tau2.registry tau2.utils.llm_utils"
sys.modules.update({name: MagicMock() for name in unused.split()})
sys.modules["tau2.utils.llm_utils"].get_cost.return_value = None

from loguru import logger
from tau2.agent import llm_agent
from tau2.config import DEFAULT_MAX_STEPS
from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.data_model.simulation import Results
from tau2.domains.telecom import environment, tools
from tau2.evaluator import evaluator
from tau2.orchestrator.orchestrator import Orchestrator
from tau2.user.user_simulator import DummyUser

logger.remove()
TASKS = {task.id: task for task in environment.get_tasks(None)}
VPN = environment.TelecomUserTools.default_vpn_details.model_copy()


def constructor(**kwargs):
    environment.TelecomUserTools.default_vpn_details, count = VPN.model_copy(), itertools.count()
    tools.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(count):08x}"))
    return environment.get_environment_manual_policy(**kwargs)


evaluator.registry = SimpleNamespace(get_env_constructor=lambda _: constructor)


def play(task, calls, limit=DEFAULT_MAX_STEPS):
    """Plays calls and done, in the messages that `tau2 run` allows, with any number of errors."""
    replies = (ToolCall(id="", name=name, arguments=given) for name, given in [*calls, ("done", {})])
    llm_agent.generate = lambda **_: AssistantMessage(role="assistant", tool_calls=[next(replies)])
    world = constructor(solo_mode=True)
    agent = llm_agent.LLMSoloAgent(world.get_tools() + world.get_user_tools(), world.get_policy(), task)
    return Orchestrator("telecom", agent, DummyUser(), world, task, limit, 10**9, solo_mode=True).run()


def verdict(task, run):
    return evaluator.evaluate_simulation(run, task, evaluator.EvaluationType.ALL, True, "telecom").reward


def handle(method, params):
    if method == "load":
        results = Results.load(params["file"])
        tasks = {task.id: task for task in results.tasks}
        return [[run.reward_info.reward, verdict(tasks[run.task_id], run)] for run in results.simulations]
    run = play(task := TASKS[params.pop("task_id")], **params)
    return [answer.content for answer in run.messages if answer.role == "tool"], verdict(task, run)
