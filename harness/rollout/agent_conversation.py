"""The conversations of an agent program in one episode: what the model reads as token ids, and what the program gets
back.

An agent sends the whole conversation with every call. If the call continues a known conversation, only its new messages
are tokenised. If the agent has changed the history, a new conversation begins. An agent with sub-agents has several
conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eh_gym.errors import ConfigError, EHError
from harness.agents.env import write_action
from harness.agents.protocol import ModelAnswer, ModelCall
from harness.types.sampler import Sample, spans
from harness.types.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from harness.chat.chat import ChatFormat, Reply
    from harness.chat.messages import MessageFormat


class UnreadableRequestError(EHError):
    """The model's chat template refuses an agent's messages. This counts as a failure of the agent."""


@dataclass
class _Known:
    """A conversation up to the last message that the model wrote. `ids` are all of its tokens."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    ids: list[int]
    stopped: bool


class AgentConversation:
    """Does for an agent program what `Conversation` does for an environment.

    Raises:
        UnreadableRequestError: The chat template refuses the messages.
    """

    def __init__(self, chat: ChatFormat, call: ModelCall) -> None:
        self._chat = chat
        self._known: list[_Known] = []
        self._made = 0  # the number of function calls so far, which numbers their ids
        self.prompt_ids = self._take(call)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens that the agent wants in the next reply; None for no limit of its own."""
        return self._call.max_tokens

    def cut(self, sample: Sample) -> Sample:
        """The sample up to the first of the agent's stop texts. The rest is dropped."""
        end = self._chat.until(sample.ids, self._call.stop) if self._call.stop else len(sample.ids)
        if end == len(sample.ids):
            return sample
        versions = [version for version, count in sample.versions for _ in range(count)][:end]
        return Sample(sample.ids[:end], sample.logprobs[:end], "length", versions[0], spans(versions))

    def read(self, ids: Sequence[int]) -> Reply:
        """Splits a sampled reply into its thought and its action."""
        return self._format.read(ids)

    def action(self, trajectory: Trajectory, begin: int, reply: Reply, sample: Sample) -> str:
        """Returns the action for a reply: the answer to the agent's request.

        Args:
            trajectory: The episode, which has the reply's ids from `begin` on.
            begin: The index of the reply's first id.
            reply: The reply.
            sample: The last sample of it.
        """
        said = self._format.said(reply)
        calls = [{"id": f"call{self._made + at:05d}", **call} for at, call in enumerate(said.get("tool_calls", ()))]
        self._made += len(calls)
        ends = [said["content"].find(stop) for stop in self._call.stop if stop in said["content"]]
        written = range(begin + reply.thought_tokens, len(trajectory.ids) - (sample.finish_reason == "stop"))
        answer = ModelAnswer(
            text=said["content"][: min(ends, default=None)],
            calls=calls,
            reasoning=reply.reasoning,
            finish_reason="tool_calls" if calls else "length" if trajectory.turns[-1].cut else "stop",
            prompt_tokens=begin,
            completion_tokens=len(trajectory.ids) - begin,
            logprobs=[(self._chat.text([trajectory.ids[i]]), trajectory.logprobs[i]) for i in written]
            if self._call.logprobs
            else None,
        )
        message = answer.message | ({"reasoning": reply.reasoning} if reply.reasoning else {})
        stopped = sample.finish_reason == "stop"
        self._known.append(_Known([*self._messages, message], self._call.tools, list(trajectory.ids), stopped))
        return write_action(answer)

    def answered(self, ids: list[int], turn: Turn, info: Mapping[str, Any], *, stopped: bool) -> list[int]:
        """Returns all ids that the model reads before its next reply: those of the agent's next request,
        ``info["call"]``.

        Raises:
            UnreadableRequestError: The chat template refuses the messages.
        """
        return self._take(info["call"])

    def _take(self, call: ModelCall) -> list[int]:
        self._call = call
        ids, self._messages, self._format = self.ids(call)
        return ids

    def ids(self, call: ModelCall) -> tuple[list[int], list[dict[str, Any]], MessageFormat]:
        """The ids of a request, its messages and their form. They extend the longest known conversation that it
        continues.

        Raises:
            UnreadableRequestError: The chat template refuses the messages.
        """
        from harness.chat.messages import MessageFormat  # transformers takes seconds to import

        form = MessageFormat(self._chat, call.tools)
        for known in sorted(self._known, key=lambda known: -len(known.messages)):
            new = call.messages[len(known.messages) :]
            if not new or known.tools != call.tools or not all(map(_same, known.messages, call.messages)):
                continue
            try:
                grown = known.ids + form.following_ids(known.messages[-1], new, stopped=known.stopped)
            except ConfigError:
                break  # the template may refuse these messages after a reply, and still take the whole conversation
            return grown, [*known.messages, *new], form
        try:
            return form.ids(call.messages), call.messages, form
        except ConfigError as error:
            raise UnreadableRequestError(str(error)) from error


def _same(message: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two messages say the same. Agents rename calls, and strip the blanks around what the model wrote."""
    return _content(message) == _content(other)


def _content(message: Mapping[str, Any]) -> tuple[Any, ...]:
    content = message["content"]
    if message["role"] != "assistant":
        return message["role"], content
    return "assistant", content.strip(), [call["function"] for call in message.get("tool_calls", ())]
