"""verl (v1): tool-calling agent loops with an elastic ``max_assistant_turns``."""

import contextvars
import functools
import json
from collections.abc import Mapping
from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import EpisodeOutcome, episode_horizon
from eh_gym.horizon.make import make_controller
from eh_gym.integrations.folder import FolderHorizon
from eh_gym.rewards import result_of

__all__ = ["ElasticAgentLoopManager", "ElasticAgentLoopWorker", "ElasticToolAgentLoop", "HorizonActor"]

ACTOR = "eh-horizon"
_validating: contextvars.ContextVar[bool] = contextvars.ContextVar("validating")  # each rollout is an asyncio task


class HorizonActor:
    """Holds K for all agent loop workers. It becomes the Ray actor ``eh-horizon`` of the job.

    Args:
        folder: Where the state and the log are kept, on the actor's machine; see `FolderHorizon`.
        update_every: The number of training episodes between two updates of K.
        success_at: The smallest reward of a success.
        zero_reward_on_truncation: False leaves the reward of a truncated rollout as it is.
        horizon: The controller's arguments for `eh_gym.make_controller`; ``name`` is its kind.
    """

    def __init__(
        self,
        folder: str,
        update_every: int,
        success_at: float,
        horizon: dict[str, Any],
        zero_reward_on_truncation: bool = True,
    ) -> None:
        self._horizon = FolderHorizon(folder, make_controller(**{"name": "elastic", **horizon}), update_every)
        self._success_at, self._keep = success_at, not zero_reward_on_truncation

    def horizon_for(self, info: dict[str, Any]) -> int:
        """The K of a rollout that starts now."""
        return episode_horizon(self._horizon, info, None)

    def record(
        self, length: int, k: int, truncated: bool, reward: float, info: dict[str, Any], training: bool = True
    ) -> float:
        """Records a rollout, if it is for training. Returns its reward."""
        task = info.get("task_id")
        named = None if task is None else str(task)
        kept, won = result_of(reward, ended=not truncated, threshold=self._success_at, keep=self._keep)
        if training:
            self._horizon.record(EpisodeOutcome(length, k, won, truncated, named, info=info))
        return kept


@functools.cache  # Ray ends an actor with its first handle, and a loop lives for one rollout
def _actor(folder: str, update_every: int, success_at: float, horizon: str, zero_reward_on_truncation: bool) -> Any:
    made = ray.remote(HorizonActor).options(name=ACTOR, get_if_exists=True, num_cpus=0)
    return made.remote(folder, update_every, success_at, json.loads(horizon), zero_reward_on_truncation)


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row.get("extra_info") or {})


class ElasticToolAgentLoop(ToolAgentLoop):
    """verl's `ToolAgentLoop` under the controller's K.

    A step is a message of the model. A rollout is truncated if its last message calls a tool, or if its tokens are used
    up. Name the class in the file of ``agent.agent_loop_config_path``, with the arguments of `HorizonActor`, and
    `ElasticAgentLoopManager` as ``agent.agent_loop_manager_class``.
    """

    def __init__(
        self,
        *args: Any,
        folder: str,
        horizon: Any = None,
        update_every: int = 64,
        success_at: float = 1.0,
        zero_reward_on_truncation: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        chosen = json.dumps(dict(horizon or {}))
        self._actor = _actor(folder, update_every, success_at, chosen, zero_reward_on_truncation)

    async def run(self, *args: Any, **kwargs: Any) -> AgentLoopOutput:
        """One rollout. Its K may depend on the row's ``extra_info``, such as ``task_id``."""
        self.max_assistant_turns = await self._actor.horizon_for.remote(_about(kwargs))
        return await super().run(*args, **kwargs)

    async def _handle_generating_state(self, agent_data: AgentData, *args: Any, **kwargs: Any) -> AgentState:
        state = await super()._handle_generating_state(agent_data, *args, **kwargs)
        cut = len(agent_data.response_mask) >= self.response_length
        if state is AgentState.TERMINATED and not cut:  # verl stops at K before it looks for calls
            schemas = [tool.tool_schema for tool in agent_data._active_tools.values()]
            cut = bool((await self.tool_parser.extract_tool_calls(agent_data.response_ids, schemas))[1])
        # Last, because verl takes the server's fields only if the output has none.
        agent_data.extra_fields["horizon"] = [agent_data.assistant_turns, self.max_assistant_turns, cut]
        return state

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        state = await super()._handle_processing_tools_state(agent_data)
        agent_data.extra_fields["horizon"][2] = state is AgentState.TERMINATED  # the answers did not fit
        return state


class ElasticAgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """Records each training rollout. A truncated one earns its reward or 0, whichever is less, also in validation."""

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        _validating.set(validate)
        await super()._agent_loop_postprocess(output, validate, **kwargs)

    async def _compute_score(self, outputs: list[AgentLoopOutput], kwargs: dict[str, Any]) -> None:
        await super()._compute_score(outputs, kwargs=kwargs)
        last, training = outputs[-1], not _validating.get()
        if "horizon" not in last.extra_fields or (last.reward_score is None and not training):
            return
        if last.reward_score is None:
            raise ConfigError("a rollout has no reward yet; let verl's reward loop score it (reward.num_workers > 0)")
        ending = (*last.extra_fields["horizon"], last.reward_score, _about(kwargs))
        last.reward_score = await ray.get_actor(ACTOR).record.remote(*ending, training)


class ElasticAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with `ElasticAgentLoopWorker` as its workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ElasticAgentLoopWorker)
