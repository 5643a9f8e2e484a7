"""tau2's telecom worlds in solo mode, and its official verdict."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from typing import Any
from unittest.mock import MagicMock

# Modules of the domain import these, and the domain uses none. dotenv would read the user's .env.
sys.modules.update({name: MagicMock() for name in ("pandas", "deepdiff", "dotenv")})

from loguru import logger
from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.data_model.tasks import RewardType, Task
from tau2.domains.telecom.data_model import TelecomDB
from tau2.domains.telecom.environment import TelecomEnvironment, get_environment_manual_policy
from tau2.domains.telecom.tools import TelecomTools
from tau2.domains.telecom.user_data_model import TelecomUserDB
from tau2.domains.telecom.user_tools import TelecomUserTools
from tau2.domains.telecom.utils import TELECOM_DB_PATH, TELECOM_TASK_SET_PATH, TELECOM_USER_DB_PATH
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

logger.disable("tau2")
_DB, _USER_DB = TelecomDB.load(TELECOM_DB_PATH), TelecomUserDB.load(TELECOM_USER_DB_PATH)
_VPN = TelecomUserTools.default_vpn_details.model_copy()
_TASKS = {task["id"]: task for task in json.loads(TELECOM_TASK_SET_PATH.read_text(encoding="utf-8"))}


class _Tools(TelecomTools):  # type: ignore[misc]
    def _apply_one_time_charge(self, customer_id: str, amount: float, description: str) -> None:
        """tau2 draws a random id for a new bill, and its own replay then raises. Here the bills are counted."""
        count = len(self.db.bills)
        super()._apply_one_time_charge(customer_id, amount, description)
        if len(self.db.bills) > count:
            bill, ids = self.db.bills[-1], self.get_customer_by_id(customer_id).bill_ids
            ids[ids.index(bill.bill_id)] = bill.bill_id = f"B{count:08x}"


def new_world(solo_mode: bool = False) -> Any:
    """A world as tau2's constructor makes it, without reading files and building models of the tools.

    tau2's default VPN belongs to the class, and a task breaks it. Here each world has its own.
    """
    tools, user_tools = _Tools(_DB.model_copy(deep=True)), TelecomUserTools(_USER_DB.model_copy(deep=True))
    user_tools.default_vpn_details = _VPN.model_copy()
    world = TelecomEnvironment("telecom", "", tools, user_tools)
    world.solo_mode = solo_mode
    return world


@functools.cache
def _official() -> Any:
    return get_environment_manual_policy(solo_mode=True)


@functools.cache
def policy() -> str:
    """tau2's policy for solo mode."""
    return str(_official().get_policy())


@functools.cache
def tools() -> list[dict[str, Any]]:
    """The tools of both sides and ``done``, as OpenAI takes them."""
    done = {"name": "done", "description": "Call this function when you are done with the task."}
    parameters = {"type": "object", "properties": {}}
    listed = [tool.openai_schema for tool in _official().get_tools() + _official().get_user_tools()]
    return [*listed, {"type": "function", "function": {**done, "parameters": parameters}}]


@functools.cache
def signatures() -> dict[str, inspect.Signature]:
    """The signature of each tool."""
    kits = {**_official().tools.tools, **_official().user_tools.tools}
    return {name: inspect.signature(tool) for name, tool in kits.items()} | {"done": inspect.Signature()}


class World:
    """A running task: its world, and the messages of the agent and of the tools so far."""

    def __init__(self, task_id: str) -> None:
        self.task = Task.model_validate(_TASKS[task_id])
        self._world, start = new_world(solo_mode=True), self.task.initial_state
        self._world.set_state(start.initialization_data, start.initialization_actions, [])
        self._messages: list[Any] = []

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """tau2's answer to a call, and whether it is an error."""
        call = ToolCall(id=str(len(self._messages)), name=name, arguments=arguments, requestor="assistant")
        answer = self._world.get_response(call)
        self._messages += [AssistantMessage(role="assistant", content=None, tool_calls=[call]), answer]
        return answer.content, answer.error

    def verdict(self) -> bool:
        """The official verdict: tau2's evaluators replay the calls in a new world. Raises what they raise."""
        reward = EnvironmentEvaluator.calculate_reward(new_world, self.task, self._messages, solo_mode=True).reward
        if RewardType.ACTION in self.task.evaluation_criteria.reward_basis:
            reward *= ActionEvaluator.calculate_reward(self.task, self._messages).reward
        return bool(reward == 1.0)
