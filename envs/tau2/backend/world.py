"""tau2's telecom worlds in solo mode, and its official verdict."""
# ruff: noqa: E402

import json
import sys
from typing import Any
from unittest.mock import MagicMock

# The domain imports these and uses none. dotenv would read the user's .env.
sys.modules.update({name: MagicMock() for name in ("pandas", "deepdiff", "dotenv")})

from loguru import logger
from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.data_model.tasks import RewardType, Task
from tau2.domains.telecom import environment, utils
from tau2.domains.telecom.environment import TelecomTools, TelecomUserTools
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

logger.disable("tau2")
OFFICIAL = environment.get_environment_manual_policy(solo_mode=True)
TOOLS = [tool.openai_schema["function"] for tool in OFFICIAL.get_tools() + OFFICIAL.get_user_tools()]
TOOLS.append({"name": "done", "description": "Ends the task.", "parameters": {"type": "object", "properties": {}}})
_DB, _USER_DB = OFFICIAL.tools.db, OFFICIAL.user_tools.db
_VPN = TelecomUserTools.default_vpn_details.model_copy()
_TASKS = {task["id"]: task for task in json.loads(utils.TELECOM_TASK_SET_PATH.read_text(encoding="utf-8"))}


class _Tools(TelecomTools):  # type: ignore[misc]
    def _apply_one_time_charge(self, customer_id: str, amount: float, description: str) -> None:
        """tau2 gives a new bill a random id, and its own replay then raises. Here bills are counted."""
        count = len(self.db.bills)
        super()._apply_one_time_charge(customer_id, amount, description)
        if len(self.db.bills) > count:
            self.get_customer_by_id(customer_id).bill_ids[-1] = self.db.bills[-1].bill_id = f"B{count:08x}"


def _new_world(solo_mode: bool = False) -> Any:
    """A world as tau2 makes it in 30 ms. Its VPN is its own: tau2's belongs to the class."""
    tools, user_tools = _Tools(_DB.model_copy(deep=True)), TelecomUserTools(_USER_DB.model_copy(deep=True))
    user_tools.default_vpn_details = _VPN.model_copy()
    world = environment.TelecomEnvironment("telecom", "", tools, user_tools)
    world.solo_mode = solo_mode
    return world


class RunningTask:
    """A running task."""

    def __init__(self, task_id: str) -> None:
        self.task = Task.model_validate(_TASKS[task_id])
        self._world, start = _new_world(solo_mode=True), self.task.initial_state
        self._world.set_state(start.initialization_data, start.initialization_actions, [])
        self.messages: list[Any] = []

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        call = ToolCall(id=str(len(self.messages)), name=name, arguments=arguments, requestor="assistant")
        answer = self._world.get_response(call)
        self.messages += [AssistantMessage(role="assistant", tool_calls=[call]), answer]
        return answer.content, answer.error

    def verdict(self) -> dict[str, Any]:
        try:
            reward = EnvironmentEvaluator.calculate_reward(_new_world, self.task, self.messages, True).reward
            if RewardType.ACTION in self.task.evaluation_criteria.reward_basis:
                reward *= ActionEvaluator.calculate_reward(self.task, self.messages).reward
        except Exception as error:
            # All but an answer that differs is the agent's doing.
            name = "environment_error" if str(error).startswith("Tool call:") else "world_lost"
            return {"success": False, name: f"tau2's replay raised {error!r}"[:2000]}
        return {"success": bool(reward == 1.0)}
