"""Plays the episodes of an evaluation with a model behind an OpenAI-compatible chat endpoint.

If the environment offers functions (``info["tools"]``), the protocol's tools and tool calls are used. Otherwise the environment
describes its actions in its texts. The calls of an agent program are handed on, and what the model answers is handed back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from eh_gym import FixedHorizon
from eh_gym.answers import results_fault
from eh_gym.errors import ConfigError, SamplerError, WorkerError
from eh_gym.vector import ThreadVectorEnv
from harness.agents.env import AgentEnv, write_action
from harness.agents.protocol import FinishReason, ModelAnswer, ModelCall, read_function_call
from harness.agents.writing import written_calls
from harness.evaluation.endpoint import ChatEndpoint, ContextFull, EndpointReply
from harness.rollout.conversation import UNFINISHED
from harness.rollout.environment import Environments
from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory, Turn

__all__ = ["play_with_endpoint"]

Message = dict[str, Any]
_RETRIES = 2  # how often an episode is played again after its environment failed
_NOT_CARRIED_OUT = "This call was not carried out."


def play_with_endpoint(
    endpoint: Callable[[], ChatEndpoint],
    environments: Environments,
    requests: Sequence[EpisodeRequest],
    *,
    horizon: int,
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays every request and returns the trajectories in the same order. They hold texts but no tokens.

    If the conversation and the room for an answer exceed the model's context, the episode ends with the reason "context".
    `endpoint` is called in the event loop that uses the endpoint. There are never more requests at a time than slots.

    Raises:
        ConfigError: See `ChatEndpoint.reply`.
        SamplerError: See `ChatEndpoint.reply`. The message says how many episodes were played.
    """
    envs = environments.open(FixedHorizon(horizon), episodes=len(requests))
    done: dict[int, Trajectory] = {}

    async def play_all() -> None:
        waiting = iter(range(len(requests)))
        async with endpoint() as model:

            async def play_in(slot: int) -> None:
                for index in waiting:
                    done[index] = await _play(model, envs, slot, requests[index], environments.keeps_reward)
                    on_end(done[index])

            await asyncio.gather(*(play_in(slot) for slot in range(envs.num_envs)))

    try:
        _run(play_all())
    except SamplerError as error:
        raise SamplerError(f"{error} ({len(done)} of {len(requests)} episodes had been played)") from error
    finally:
        envs.close()
    return [done[index] for index in range(len(requests))]


def _run(played: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end. In a notebook, which already runs an event loop, it runs in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(played)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="eh-endpoint") as thread:
        thread.submit(asyncio.run, played).result()


async def _play(model: ChatEndpoint, envs: ThreadVectorEnv, slot: int, request: EpisodeRequest, keeps_reward: bool) -> Trajectory:
    """Plays one episode. If its environment fails, the episode is played again with the same seed, at most twice."""
    for attempt in range(_RETRIES + 1):
        trajectory = Trajectory(request.task_id, request.group, seed=request.seed, retries=attempt, keeps_reward=keeps_reward)
        try:
            await _play_once(model, envs, slot, request, trajectory)
        except WorkerError as failure:
            trajectory.fail(failure)
        if trajectory.end != "environment-error":
            break
    return trajectory


async def _play_once(
    model: ChatEndpoint, envs: ThreadVectorEnv, slot: int, request: EpisodeRequest, trajectory: Trajectory
) -> None:
    observation, info = await asyncio.wrap_future(envs.submit_reset(slot, **request.reset_arguments()))
    trajectory.begin(observation, info)
    call: ModelCall | None = info.get("call")  # of an agent program, which keeps the conversation itself
    tools, system = info.get("tools", ()), info.get("system_prompt", "")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": trajectory.prompt})
    end = None
    while end is None:
        try:
            seed = derive_seed(trajectory.seed, "turn", trajectory.length)
            if call:
                reply = await model.reply(_sent(call), seed=seed, tools=call.tools, stop=call.stop, max_tokens=call.max_tokens)
            else:
                reply = await model.reply(messages, seed=seed, tools=tools)
        except ContextFull:
            trajectory.stop("context")
            break
        if call:
            action = write_action(_answer(reply))
        else:
            action = json.dumps({**reply.message, "content": reply.text}) if tools else reply.text
        turn = Turn(action, "", reply.cut, malformed=False, reasoning=reply.reasoning, unfinished=reply.unfinished)
        turn.action_tokens, turn.prompt_tokens = reply.completion_tokens, reply.prompt_tokens
        turn.latency_s = reply.latency_s
        trajectory.turns.append(turn)
        answer = await asyncio.wrap_future(envs.submit_step(slot, action))
        end = trajectory.add_answer(answer)
        if reply.unfinished:
            turn.observation = f"{UNFINISHED}\n{turn.observation}"
        if call:
            call = answer[4].get("call", call)
            continue
        tools = answer[4].get("tools", tools)
        results = answer[4].get("tool_results") or []
        messages += _said_and_done(reply, results)
        if not results:
            messages.append({"role": "user", "content": turn.observation})
    env = envs.envs[slot].unwrapped
    if isinstance(env, AgentEnv):  # its agent may wait for an answer
        env.stop_agent(trajectory.end)
        if trajectory.awaits_verdict:
            trajectory.add_verdict(await asyncio.wrap_future(envs.submit_call(slot, env.verdict)))


def _sent(call: ModelCall) -> list[Message]:
    """An agent's messages for the endpoint."""
    return [m | {"tool_calls": written_calls(m["tool_calls"])} if "tool_calls" in m else m for m in call.messages]


def _answer(reply: EndpointReply) -> ModelAnswer:
    """The endpoint's reply for an agent."""
    calls = [read_function_call(call["id"], call["function"]) for call in reply.calls]
    reason: FinishReason = "tool_calls" if calls else "length" if reply.cut else "stop"
    return ModelAnswer(reply.text, calls, reply.reasoning, reason, reply.prompt_tokens, reply.completion_tokens)


def _said_and_done(reply: EndpointReply, results: Sequence[str]) -> list[Message]:
    """The model's message, and the result of each of its calls.

    If the environment could not read the calls, there are no results. But servers refuse a call without a result, and arguments
    that are not a JSON object. So such arguments become an empty object, and each result says that the call was not carried
    out.
    """
    if not reply.calls:
        return [reply.message]
    calls = reply.calls
    if not results:
        results = [_NOT_CARRIED_OUT] * len(calls)
        calls = [{**call, "function": {**call["function"], "arguments": _readable(call)}} for call in calls]
    if fault := results_fault(results, len(calls)):
        raise ConfigError(fault)
    said = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call, result in zip(calls, results, strict=True)]
    return [{**reply.message, "tool_calls": calls}, *said]


def _readable(call: Mapping[str, Any]) -> str:
    """The arguments of a call if they are a JSON object, else an empty one."""
    arguments: str = call["function"]["arguments"]
    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except (ValueError, RecursionError):  # the model may nest brackets endlessly
        return "{}"
