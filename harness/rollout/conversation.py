"""The text that a model reads in one episode: the first prompt, and after each reply the environment's answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat, Reply

UNFINISHED = "Your last message had no action, because its thought did not end. Think less, then act."
"""The model reads this after a thought that never ended, before the environment's answer to an empty action."""


class Conversation:
    """The messages of one episode, as token ids.

    Args:
        chat: Turns texts into ids.
        observation: The environment's first message.
        info: The info of the reset. It may have a ``system_prompt``, and ``tools``, the functions on offer.

    Attributes:
        tools: The functions on offer so far.
        prompt_ids: The ids of the first prompt.
    """

    def __init__(self, chat: ChatFormat, observation: str, info: Mapping[str, Any]) -> None:
        self.tools = list(info.get("tools", ()))
        self.prompt_ids = chat.prompt_ids(info.get("system_prompt", ""), observation, self.tools)
        self._chat = chat

    max_tokens = None
    """The most tokens that the environment wants in the next reply; None for no limit of its own."""

    def cut(self, sample: Sample) -> Sample:
        """The part of a sample that counts, which is all of it."""
        return sample

    def read(self, ids: Sequence[int]) -> Reply:
        """Splits a sampled reply into its thought and its action."""
        return self._chat.read(ids, self.tools)

    def action(self, trajectory: Trajectory, begin: int, reply: Reply, sample: Sample) -> str:
        """What the environment gets for a reply; the arguments are those of `AgentConversation.action`."""
        return reply.action

    def answered(self, ids: list[int], turn: Turn, info: Mapping[str, Any], *, stopped: bool) -> list[int]:
        """Returns all ids that the model reads before its next reply. Sets the turn's observation to what the model
        sees.

        Functions that come new with the answer's ``tools`` are described in this message: a conversation that only
        grows can't change its beginning.

        Args:
            ids: What the model has read and written so far.
            turn: The last turn, with the environment's answer.
            info: The info of the answer.
            stopped: Whether the reply ended with a stop token.
        """
        results = info.get("tool_results") or ()
        if results:
            answers = self._chat.result_messages(turn.action, results)
            return ids + self._chat.following_ids([answer["name"] for answer in answers], answers, stopped=stopped)
        new = [tool for tool in info.get("tools", ()) if tool not in self.tools]
        self.tools += new
        notes = [UNFINISHED] if turn.unfinished else []
        functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in new]
        turn.observation = "\n".join([*notes, *functions, turn.observation])
        return ids + self._chat.observation_ids(turn.observation, stopped=stopped)
