"""Plays the episodes of an evaluation with a model behind an OpenAI-compatible chat endpoint.

If the environment offers functions (``info["tools"]``), the protocol's tools and tool calls are used. Otherwise the
environment describes its actions in its texts. The calls of an agent program are handed on, and what the model answers
is handed back.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eh_gym import FixedHorizon
from eh_gym.answers import results_fault
from eh_gym.errors import ConfigError, SamplerError
from harness.agents.env import write_action
from harness.agents.protocol import FinishReason, ModelAnswer, ModelCall, read_function_call
from harness.agents.writing import written_calls
from harness.evaluation.endpoint import ChatEndpoint, EndpointReply
from harness.evaluation.play import Info, Replies, play_all, run_to_the_end
from harness.rollout.environment import Environments
from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory, Turn

__all__ = ["play_with_endpoint"]

Message = dict[str, Any]
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

    If the conversation and the room for an answer exceed the model's context, the episode ends with the reason
    "context". `endpoint` is called in the event loop that uses the endpoint. There are never more requests at a time
    than slots.

    Raises as `ChatEndpoint.reply` does. The message of a SamplerError says how many episodes were played.
    """
    envs = environments.open(FixedHorizon(horizon), episodes=len(requests))
    played = 0

    def count(trajectory: Trajectory) -> None:
        nonlocal played
        played += 1
        on_end(trajectory)

    async def play() -> list[Trajectory]:
        async with endpoint() as model:
            return await play_all(functools.partial(_replies, model), envs, requests, environments.keeps_reward, count)

    try:
        return run_to_the_end(play())
    except SamplerError as error:
        raise SamplerError(f"{error} ({played} of {len(requests)} episodes had been played)") from error
    finally:
        envs.close()


async def _replies(model: ChatEndpoint, trajectory: Trajectory, info: Info) -> Replies:
    call: ModelCall | None = info.get("call")  # of an agent program, which keeps the conversation itself
    tools, system = info.get("tools", ()), info.get("system_prompt", "")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": trajectory.prompt})
    while True:
        seed = derive_seed(trajectory.seed, "turn", trajectory.length)
        if call:
            reply = await model.reply(
                _sent(call), seed=seed, tools=call.tools, stop=call.stop, max_tokens=call.max_tokens
            )
            action = write_action(_answer(reply))
        else:
            reply = await model.reply(messages, seed=seed, tools=tools)
            action = json.dumps({**reply.message, "content": reply.text}) if tools else reply.text
        turn = Turn(action, "", reply.cut, malformed=False, reasoning=reply.reasoning, unfinished=reply.unfinished)
        turn.action_tokens, turn.prompt_tokens = reply.completion_tokens, reply.prompt_tokens
        turn.latency_s = reply.latency_s
        answer = yield turn, action
        assert answer is not None, "the loop sends the environment's answer"
        info = answer[4]
        call, tools = info.get("call", call), info.get("tools", tools)
        results = info.get("tool_results") or []
        messages += _said_and_done(reply, results)
        if not results:
            messages.append({"role": "user", "content": turn.observation})


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

    If the environment could not read the calls, there are no results. But servers refuse a call without a result, and
    arguments that are not a JSON object. So such arguments become an empty object, and each result says that the call
    was not carried out.
    """
    if not reply.calls:
        return [reply.message]
    calls = reply.calls
    if not results:
        results = [_NOT_CARRIED_OUT] * len(calls)
        calls = [{**call, "function": {**call["function"], "arguments": _readable(call)}} for call in calls]
    if fault := results_fault(results, len(calls)):
        raise ConfigError(fault)
    said = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=True)
    ]
    return [{**reply.message, "tool_calls": calls}, *said]


def _readable(call: Mapping[str, Any]) -> str:
    """The arguments of a call if they are a JSON object, else an empty one."""
    arguments: str = call["function"]["arguments"]
    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except (ValueError, RecursionError):  # the model may nest brackets endlessly
        return "{}"
