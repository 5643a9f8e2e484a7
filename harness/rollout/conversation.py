"""What is read and written in one attempt at an episode, whether a model or an endpoint replies."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from eh_gym.errors import EHError
from harness.settings.rollout import Rollout
from harness.types.sampler import Sample, SampleRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory, Turn

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat, Reply

Info = Mapping[str, Any]

UNFINISHED = "Your last message had no action, because its thought did not end. Think less, then act."
"""The model reads this after a thought that never ended, before the environment's answer to an empty action."""

REFUSED = "refuses this request and answers others"
"""What the fault of an episode says if a hosted model's server has ended it."""


class NoRoom(EHError):
    """There is no room for another reply. The episode ends with the reason "context"."""


class UnreadableRequestError(EHError):
    """The chat template or a hosted model refuses a request. If an agent made it, this counts as its failure."""


class Conversation(Protocol):
    """One attempt at an episode. It writes into the episode's trajectory."""

    def request(self, session: Hashable) -> Any: ...

    def act(self, reply: Any) -> tuple[Turn, Any]:
        """Takes the reply. Returns the turn without an observation, and the environment's action."""
        ...

    def answered(self, info: Info) -> None:
        """Goes on after the environment's answer, which the last turn has. Raises NoRoom or UnreadableRequestError."""
        ...


Converse = Callable[[Trajectory, Info, Rollout], Conversation]
"""Begins a conversation with the trajectory and the info of a reset. Raises as `Conversation.answered` does."""


class ModelConversation(ABC):
    """The conversation of a model in token ids, which are the trajectory's.

    A prompt and its reply have at most `max_context` tokens. Nothing is ever removed to make room. If the first prompt
    is too long, the trajectory keeps it, and this raises NoRoom.
    """

    def __init__(
        self, chat: ChatFormat, max_context: int, trajectory: Trajectory, info: Info, settings: Rollout
    ) -> None:
        self._chat, self._max_context, self._settings = chat, max_context, settings
        self.trajectory = trajectory
        trajectory.add_prompt(self._first_ids(info))
        self._check_room(trajectory.ids)

    @abstractmethod
    def _first_ids(self, info: Info) -> list[int]: ...

    @abstractmethod
    def _read(self, ids: Sequence[int]) -> Reply: ...

    @abstractmethod
    def _next_ids(self, info: Info) -> list[int]:
        """All ids that the model reads before its next reply. Sets the last turn's observation."""

    def _counted(self, sample: Sample) -> Sample:
        return sample

    def _action(self, reply: Reply, begin: int, *, cut: bool) -> Any:
        return reply.action

    def request(self, session: Hashable) -> Any:
        seed = derive_seed(self.trajectory.seed, "turn", self.trajectory.length)
        return self._sample_request(session, self.trajectory.ids, seed, self._settings.max_action_tokens)

    def _sample_request(self, session: Hashable, ids: Sequence[int], seed: int, limit: int) -> SampleRequest:
        return SampleRequest(
            session=session,
            prompt_ids=ids,
            max_tokens=min(limit, self._max_context - len(ids)),
            seed=seed,
            temperature=self._settings.temperature,
            stop_ids=self._chat.stop_ids,
        )

    def act(self, reply: Sample) -> tuple[Turn, Any]:
        trajectory, begin = self.trajectory, len(self.trajectory.ids)
        sample = self._counted(reply)
        cut = sample.finish_reason == "length" and sample is reply  # else one of the agent's stop texts ended it
        another = bool(trajectory.earlier) and not any(trajectory.action_mask)  # sequence of ids begins here
        trajectory.add_sample(sample)
        self._stopped = sample.finish_reason == "stop"
        read = self._read(trajectory.ids[begin:])
        turn = Turn(
            read.action,
            "",
            cut,
            read.malformed,
            action_tokens=len(trajectory.ids) - begin,
            reasoning=read.reasoning,
            reasoning_tokens=read.thought_tokens,
            unfinished=read.unfinished,
            prompt_tokens=begin if another else 0,
        )
        return turn, self._action(read, begin, cut=cut)

    def answered(self, info: Info) -> None:
        ids = self._next_ids(info)
        self._check_room(ids)  # before the observation is added, which an action must be able to follow
        self.trajectory.turns[-1].observation_tokens = self.trajectory.go_on(ids)

    def _check_room(self, ids: Sequence[int]) -> None:
        if len(ids) >= self._max_context:
            raise NoRoom(f"{len(ids)} tokens leave no room in a context of {self._max_context}")


class EnvironmentConversation(ModelConversation):
    """With an environment. The info of the reset may have a ``system_prompt``, and ``tools``, the functions on
    offer.
    """

    def _first_ids(self, info: Info) -> list[int]:
        self._tools = list(info.get("tools", ()))
        return self._chat.prompt_ids(info.get("system_prompt", ""), self.trajectory.prompt, self._tools)

    def _read(self, ids: Sequence[int]) -> Reply:
        return self._chat.read(ids, self._tools)

    def _next_ids(self, info: Info) -> list[int]:
        ids, turn = self.trajectory.ids, self.trajectory.turns[-1]
        if results := info.get("tool_results"):
            answers = self._chat.result_messages(turn.action, results)
            names = [answer["name"] for answer in answers]
            return ids + self._chat.following_ids(names, answers, stopped=self._stopped)
        # A conversation only grows, so new functions can't be described at its beginning.
        new = [tool for tool in info.get("tools", ()) if tool not in self._tools]
        self._tools += new
        notes = [UNFINISHED] if turn.unfinished else []
        functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in new]
        turn.observation = "\n".join([*notes, *functions, turn.observation])
        return ids + self._chat.observation_ids(turn.observation, stopped=self._stopped)
