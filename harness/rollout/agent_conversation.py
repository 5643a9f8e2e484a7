"""The conversations of an agent program in one episode.

An agent sends the whole conversation with every call. If it continues a known one, only its new messages are tokenised.
Otherwise a new conversation begins: the agent has changed the history, or has sub-agents.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eh_gym.errors import ConfigError
from harness.agents.protocol import ModelAnswer, ModelCall
from harness.rollout.ahead import AgentCalls, AgentRequest
from harness.rollout.conversation import Info, ModelConversation, UnreadableRequestError
from harness.types.sampler import Sample, SampleRequest, spans

if TYPE_CHECKING:
    from harness.chat.chat import Reply
    from harness.chat.messages import MessageFormat


@dataclass
class _Known:
    """A conversation up to the model's last message, and its tokens."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    ids: list[int]
    stopped: bool


class AgentConversation(ModelConversation):
    """The conversations of a model with an agent program. Each info has its next request, ``info["call"]``."""

    def _first_ids(self, info: Info) -> list[int]:
        self._known: list[_Known] = []
        self._made = 0  # numbers the ids of function calls
        self._calls = AgentCalls(self.trajectory, info["agent_program"], self._ids_of, self._request_for)
        return self._next_ids(info)

    def _next_ids(self, info: Info) -> list[int]:
        self._call: ModelCall = info["call"]
        ids, self._messages, self._format = self._of_call(self._call)
        return ids

    def request(self, session: Hashable) -> AgentRequest:
        return self._calls.present(session, self._call, self.trajectory.ids)

    def _ids_of(self, call: ModelCall) -> list[int]:
        ids, *_ = self._of_call(call)
        self._check_room(ids)
        return ids

    def _request_for(self, session: Hashable, call: ModelCall, ids: Sequence[int], seed: int) -> SampleRequest:
        most = self._settings.max_action_tokens
        return self._sample_request(session, ids, seed, min(most, call.max_tokens or most))

    def _counted(self, sample: Sample) -> Sample:
        end = self._chat.until(sample.ids, self._call.stop) if self._call.stop else len(sample.ids)
        if end == len(sample.ids):
            return sample
        versions = [version for version, count in sample.versions for _ in range(count)][:end]
        return Sample(sample.ids[:end], sample.logprobs[:end], "length", versions[0], spans(versions))

    def _read(self, ids: Sequence[int]) -> Reply:
        return self._format.read(ids)

    def _action(self, reply: Reply, begin: int, *, cut: bool) -> ModelAnswer:
        trajectory, message = self.trajectory, self._format.said(reply)
        text = message["content"]
        calls = [{"id": f"call{self._made + at:05d}", **call} for at, call in enumerate(message.get("tool_calls", ()))]
        self._made += len(calls)
        ends = [text.find(stop) for stop in self._call.stop if stop in text]
        written = range(begin + reply.thought_tokens, len(trajectory.ids) - self._stopped)
        answer = ModelAnswer(
            text=text[: min(ends, default=None)],
            calls=calls,
            reasoning=reply.reasoning,
            finish_reason="tool_calls" if calls else "length" if cut else "stop",
            prompt_tokens=begin,
            completion_tokens=len(trajectory.ids) - begin,
            logprobs=[(self._chat.text([trajectory.ids[i]]), trajectory.logprobs[i]) for i in written]
            if self._call.logprobs
            else None,
        )
        repeated = answer.message | ({"reasoning": reply.reasoning} if reply.reasoning else {})
        known = _Known([*self._messages, repeated], self._call.tools, list(trajectory.ids), self._stopped)
        self._known.append(known)
        return answer

    def _of_call(self, call: ModelCall) -> tuple[list[int], list[dict[str, Any]], MessageFormat]:
        """The ids, messages and form of a request, which extends the known conversation that it continues: one whose
        calls have its ids, or else the longest. Raises UnreadableRequestError.
        """
        from harness.chat.messages import MessageFormat  # transformers takes seconds to import

        form = MessageFormat(self._chat, call.tools)
        known, most = None, -1
        for other in sorted(self._known, key=lambda known: -len(known.messages)):
            length = len(other.messages)
            if (
                length < len(call.messages)
                and other.tools == call.tools
                and all(map(_same, other.messages, call.messages))
            ):
                ids, others = _call_ids(call.messages[:length]), _call_ids(other.messages)
                if (equal := sum(map(str.__eq__, ids, others))) > most:
                    known, most = other, equal
                if equal == len(ids):
                    break  # a shorter one has no more
        if known is not None:
            new = call.messages[len(known.messages) :]
            with suppress(ConfigError):  # the template may still take the whole conversation
                grown = known.ids + form.following_ids(known.messages[-1], new, stopped=known.stopped)
                return grown, [*known.messages, *new], form
        try:
            return form.ids(call.messages), call.messages, form
        except ConfigError as error:
            raise UnreadableRequestError(str(error)) from error


def _call_ids(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [call["id"] for message in messages for call in message.get("tool_calls", ())]


def _same(message: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Agents rename calls, and strip the blanks around what the model wrote."""
    return _content(message) == _content(other)


def _content(message: Mapping[str, Any]) -> tuple[Any, ...]:
    content = message["content"]
    if message["role"] != "assistant":
        return message["role"], content
    return "assistant", content.strip(), [call["function"] for call in message.get("tool_calls", ())]
