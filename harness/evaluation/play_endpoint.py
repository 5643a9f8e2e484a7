"""Plays the episodes of an evaluation with a model behind an OpenAI-compatible chat endpoint.

If the environment offers functions (``info["tools"]``), the protocol's tools and tool calls are used. Otherwise its
texts describe its actions. The calls of an agent program are handed on, and the answers back.
"""

import asyncio
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any

from eh_gym import FixedHorizon
from eh_gym.answers import results_fault
from eh_gym.errors import ConfigError, SamplerError
from harness.agents.env import AgentEnv
from harness.agents.protocol import ModelAnswer, ModelCall
from harness.evaluation.endpoint import ChatEndpoint, EndpointReply
from harness.evaluation.folder import Replies
from harness.rollout.ahead import AgentCalls
from harness.rollout.conversation import UNFINISHED, Info, NoRoom, UnreadableRequestError
from harness.rollout.environment import Environments
from harness.rollout.rollout import play
from harness.rollout.slots import OnEnd
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory, Turn

Message = dict[str, Any]
_NOT_CARRIED_OUT = "This call was not carried out."
_LOOK_S = 0.005  # the most seconds that a step of the player waits for a reply


def play_with_endpoint(
    endpoint: Callable[[], ChatEndpoint],
    environments: Environments,
    requests: Sequence[EpisodeRequest],
    settings: Rollout,
    *,
    horizon: int,
    on_end: OnEnd = lambda _: None,
    replies: Replies | None = None,
    **callbacks: OnEnd,
) -> list[Trajectory]:
    """Plays every request and returns the trajectories in the same order. They hold texts but no tokens.

    Each slot has one request at a time, and all together as many again for calls that agents make at once. What
    `replies` know is not asked again.

    A request that the server refuses, while it answers others, fails its episode.

    Raises:
        ConfigError: The endpoint refuses the key or the model.
        SamplerError: The endpoint can't be reached or fails before its first reply. Later, this loses the episode.
    """
    played = 0

    def count(trajectory: Trajectory) -> None:
        nonlocal played
        played += 1
        on_end(trajectory)

    player = _EndpointPlayer(endpoint(), replies)
    try:
        streaming = dataclasses.replace(settings, rollout="streaming")
        with closing(environments.open(FixedHorizon(horizon), episodes=len(requests))) as envs:
            for env in envs.envs:
                if isinstance(env.unwrapped, AgentEnv):
                    env.unwrapped.hosted = True
            return play(envs, player, _EndpointConversation, requests, streaming, count, **callbacks)
    except SamplerError as error:
        raise SamplerError(f"{error} ({played} of {len(requests)} episodes had been played)") from error
    finally:
        player.close()


@dataclasses.dataclass(frozen=True)
class _Request:
    """A request of an episode, which its seed names; the rest is as in `ChatEndpoint.reply`."""

    session: Hashable
    episode: int
    body: Mapping[str, Any]
    seed: int
    max_tokens: int | None = None


class _EndpointPlayer:
    """A `Player` that sends each request at once, in an event loop of a thread of its own."""

    def __init__(self, model: ChatEndpoint, replies: Replies | None = None) -> None:
        self._model, self._replies = model, replies
        self._replied = False
        self._sent: dict[Hashable, Future[EndpointReply]] = {}
        self._done: SimpleQueue[tuple[_Request, Future[EndpointReply]]] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="eh-endpoint", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._sent)

    def submit(self, request: _Request) -> None:
        future = self._sent[request.session] = asyncio.run_coroutine_threadsafe(self._reply(request), self._loop)
        future.add_done_callback(lambda done: self._done.put((request, done)))

    async def _reply(self, request: _Request) -> EndpointReply:
        body, seed, most = request.body, request.seed, request.max_tokens
        digest = hashlib.sha256(json.dumps([body, seed, most]).encode()).hexdigest()
        if self._replies and (known := self._replies.known.get(digest)):
            return self._model.read(known, seed)
        reply = await self._model.reply(body, seed=seed, max_tokens=most)
        if self._replies:
            self._replies.add(request.episode, digest, reply.body)
        return reply

    def step(self) -> list[tuple[_Request, Any]]:
        try:
            request, future = self._done.get(timeout=_LOOK_S)
        except Empty:
            return []
        if self._sent.get(request.session) is not future:  # its session has ended
            return []
        del self._sent[request.session]
        try:
            reply: Any = future.result()
            self._replied = True
        except (NoRoom, SamplerError, UnreadableRequestError) as failure:
            if not self._replied and isinstance(failure, SamplerError):
                raise
            reply = failure
        return [(request, reply)]

    def end_session(self, session: Hashable) -> None:
        if future := self._sent.pop(session, None):
            future.cancel()

    def close(self) -> None:
        for session in list(self._sent):
            self.end_session(session)
        asyncio.run_coroutine_threadsafe(self._model.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _EndpointConversation:
    """The conversation with an environment, or with an agent program, which keeps it itself."""

    def __init__(self, trajectory: Trajectory, info: Info, _: Rollout) -> None:
        self._trajectory = trajectory
        self._call: ModelCall | None = info.get("call")
        if self._call:
            program = info["agent_program"]
            self._calls = AgentCalls(trajectory, program, lambda call: call.request["messages"], self._request_for)
        self._tools, system = info.get("tools", ()), info.get("system_prompt", "")
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages.append({"role": "user", "content": trajectory.prompt})

    def request(self, session: Hashable) -> Any:
        if self._call:
            return self._calls.present(session, self._call, self._call.request["messages"])
        seed = derive_seed(self._trajectory.seed, "turn", self._trajectory.length)
        body = {"messages": list(self._messages)} | ({"tools": list(self._tools)} if self._tools else {})
        return _Request(session, self._trajectory.seed, body, seed)

    def _request_for(self, session: Hashable, call: ModelCall, _: Sequence[Message], seed: int) -> _Request:
        return _Request(session, self._trajectory.seed, call.request, seed, call.max_tokens)

    def act(self, reply: EndpointReply) -> tuple[Turn, Any]:
        self._reply = reply
        tools = self._call.tools if self._call else self._tools
        message = {"role": "assistant", "content": reply.text} | ({"tool_calls": reply.calls} if reply.calls else {})
        text = json.dumps(message) if tools else reply.text
        turn = Turn(text, cut=reply.cut, reasoning=reply.reasoning, unfinished=reply.unfinished)
        turn.action_tokens, turn.prompt_tokens = reply.completion_tokens, reply.prompt_tokens
        return turn, ModelAnswer(body=reply.body) if self._call else text

    def answered(self, info: Info) -> None:
        self._call, self._tools = info.get("call"), info.get("tools", self._tools)
        if self._call:
            return
        turn, results = self._trajectory.turns[-1], info.get("tool_results") or []
        if turn.unfinished:
            turn.observation = f"{UNFINISHED}\n{turn.observation}"
        self._messages += _said_and_done(self._reply, results)
        if not results:
            self._messages.append({"role": "user", "content": turn.observation})


def _said_and_done(reply: EndpointReply, results: Sequence[str]) -> list[Message]:
    """The model's message, and the result of each of its calls.

    If the environment could not read the calls, there are no results. But servers refuse a call without a result, and
    arguments that are no JSON object. So those become an empty one, and each result says that nothing was carried out.
    They also refuse a message without content and calls.
    """
    calls = reply.calls
    if not calls:
        return [{**reply.message, "content": reply.message.get("content") or ""}]
    if not results:
        results = [_NOT_CARRIED_OUT] * len(calls)
        calls = [{**call, "function": {**call["function"], "arguments": _readable(call)}} for call in calls]
    if fault := results_fault(results, len(calls)):
        raise ConfigError(fault)
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=True)
    ]
    return [{**reply.message, "tool_calls": calls}, *answers]


def _readable(call: Mapping[str, Any]) -> str:
    arguments: str = call["function"]["arguments"]
    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except (ValueError, RecursionError):  # the model may nest brackets endlessly
        return "{}"
