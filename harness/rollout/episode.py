"""One episode while it is played: its requests to the sampler, its record, and what comes next (a turn, a reset, or the
end).

`slots` decides where an episode plays; `rollout` and `continuous` decide the order in which episodes take their turns.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from eh_gym.errors import WorkerError
from eh_gym.vector.thread import ResetResult, StepResult
from harness.agents.protocol import ModelCall
from harness.rollout.agent_conversation import AgentConversation, UnreadableRequestError
from harness.rollout.conversation import Conversation
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sample, SampleRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import EndReason, Trajectory, Turn

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat

RETRIES = 2
"""How often an episode starts again after its environment failed. Then the episode is dropped."""

Next = Literal["turn", "reset", "verdict", "over"]
"""What an episode needs after its environment has answered. "verdict": that of an agent that was stopped."""


class Episode:
    """The episode of one request, over all its attempts.

    A prompt that leaves no room for an action within `max_context` tokens ends the episode with the reason "context".
    Nothing is ever removed from a conversation to make room. `session` is the episode's name in the sampler. An agent
    may make
    several calls at once: `ahead` has the requests for calls that wait, with their texts, and `samples` what the model
    wrote.
    """

    def __init__(
        self, session: int, request: EpisodeRequest, settings: Rollout, chat: ChatFormat, *, max_context: int
    ) -> None:
        self.session = session
        self.request = request
        self._settings, self._chat, self._max_context = settings, chat, max_context
        self._last: Sample | None = None
        self._conversation: Conversation | AgentConversation | None = None  # of the present attempt
        self._begin = 0  # where the present turn begins in the trajectory's ids
        self._asked: dict[Hashable, float] = {}  # when each turn was requested, in seconds
        self._present: Hashable = session  # the request of the present turn; None while the environment steps
        self._drawn: Counter[str] = Counter()  # how often a model has read a text of an agent
        self._made = 0  # the number of requests ahead, which names them
        self.ahead: dict[Hashable, tuple[ModelCall, list[int]]] = {}
        self.samples: dict[Hashable, Sample] = {}
        self.trajectory = self._blank()

    def reset_answered(self, answer: Future[ResetResult]) -> Next:
        """Waits for the answer to the reset, and records the first message of an attempt."""
        self._present, self.ahead, self.samples, self._drawn = self.session, {}, {}, Counter()
        try:
            observation, info = answer.result()
        except WorkerError as failure:
            return self._failed(failure)
        self.trajectory.begin(observation, info)
        try:
            call = info.get("call")
            self._conversation = (
                AgentConversation(self._chat, call) if call else Conversation(self._chat, observation, info)
            )
        except UnreadableRequestError as error:
            return self._failed(error)
        # A first prompt that is too long is kept, so that the episode is not empty. Without an action it has no loss.
        self.trajectory.add_prompt(self._conversation.prompt_ids)
        return "turn" if len(self.trajectory.ids) < self._max_context else self._over("context")

    def turns(self, waiting: Sequence[ModelCall], room: int) -> list[SampleRequest]:
        """The request of the next turn, and at most `room` requests for calls of an agent that wait behind it.

        What is sampled for such a call is kept until the call is the present one. So each call stays a step.
        """
        conversation = self._conversation
        assert conversation is not None, "reset_answered() comes before a turn"
        self._begin = len(self.trajectory.ids)
        requests = []
        if self._present == self.session:
            requests.append(self._request(self.session, self.trajectory.ids, conversation.max_tokens))
        new = [call for call in waiting if not any(call is known for known, _ in self.ahead.values())]
        if self.trajectory.horizon:
            room = min(room, self.trajectory.horizon - self.trajectory.length - len({self._present, *self.ahead}))
        for call in new[: max(0, room)]:
            assert isinstance(conversation, AgentConversation)
            with suppress(UnreadableRequestError):  # the call's own turn will tell
                ids, *_ = conversation.ids(call)
                if len(ids) < self._max_context:
                    self._made += 1
                    self.ahead[self.session, self._made] = call, ids
                    requests.append(self._request((self.session, self._made), ids, call.max_tokens))
        return requests

    def _request(self, session: Hashable, ids: list[int], max_tokens: int | None) -> SampleRequest:
        assert self._conversation is not None
        self._asked[session] = time.perf_counter()
        most = min(self._settings.max_action_tokens, max_tokens or self._settings.max_action_tokens)
        return SampleRequest(
            session=session,
            prompt_ids=ids,
            max_tokens=min(most, self._max_context - len(ids)),
            seed=derive_seed(self.request.seed, *self._draw(ids)),
            temperature=self._settings.temperature,
            stop_ids=self._chat.stop_ids,
        )

    def _draw(self, ids: list[int]) -> tuple[int | str, ...]:
        """What a turn draws from: its number; for an agent the text, and how often it was read, whenever the call
        arrived.
        """
        if isinstance(self._conversation, Conversation):
            return "turn", self.trajectory.length
        text = hashlib.sha256(str(ids).encode()).hexdigest()
        self._drawn[text] += 1
        return "call", text, self._drawn[text]

    def act(self) -> str | None:
        """Records the present turn's sample. Returns what the environment receives; None if there is no sample or turn
        now.
        """
        if self._present not in self.samples:
            return None
        sample, asked = self.samples.pop(self._present), self._asked.pop(self._present)
        self.ahead.pop(self._present, None)
        self._present = None
        trajectory = self.trajectory
        assert self._conversation is not None, "reset_answered() comes before an action"
        cut = sample.finish_reason == "length"
        self._last = self._conversation.cut(sample)
        cut &= self._last is sample  # otherwise one of the agent's stop texts ended it
        trajectory.add_sample(self._last)
        reply = self._conversation.read(trajectory.ids[self._begin :])
        begins = trajectory.earlier and not any(trajectory.action_mask[: self._begin])  # another sequence
        trajectory.turns.append(
            Turn(
                reply.action,
                "",
                cut,
                reply.malformed,
                action_tokens=len(trajectory.ids) - self._begin,
                reasoning=reply.reasoning,
                reasoning_tokens=reply.thought_tokens,
                unfinished=reply.unfinished,
                prompt_tokens=self._begin if begins else 0,
                latency_s=round(time.perf_counter() - asked, 3),
            )
        )
        return self._conversation.action(trajectory, self._begin, reply, self._last)

    def step_answered(self, answer: Future[StepResult]) -> Next:
        """Waits for the environment's answer to the last action, and records it."""
        try:
            answered = answer.result()
        except WorkerError as failure:
            return self._failed(failure)
        trajectory, conversation = self.trajectory, self._conversation
        if trajectory.awaits_verdict:
            trajectory.add_verdict(answered)
            return "over"
        sample = self._last
        assert conversation is not None, "reset_answered() comes before an answer"
        assert sample is not None, "act() comes before the answer"
        end = trajectory.add_answer(answered)
        if end == "environment-error":
            return self._failed(trajectory.error or "")
        if end is not None:
            return "verdict" if trajectory.awaits_verdict else "over"
        turn = trajectory.turns[-1]
        stopped = sample.finish_reason == "stop"
        try:
            ids = conversation.answered(trajectory.ids, turn, answered[4], stopped=stopped)
        except UnreadableRequestError as error:
            trajectory.failure = str(error)
            return self._over("terminated")
        if len(ids) >= self._max_context:
            return self._over("context")  # the observation is not added: no action would follow it
        turn.observation_tokens = trajectory.go_on(ids)
        call = answered[4].get("call")
        asked = (s for s, (known, read) in self.ahead.items() if known is call and read == ids)
        self._present = next(asked, self.session)
        return "turn"

    def _failed(self, error: str | BaseException) -> Next:
        """Starts the episode again with the same seed after its environment failed; ends it after the last retry."""
        failed = self.trajectory
        lost = failed.failed_tokens + failed.tokens
        if failed.retries < RETRIES:
            self.trajectory = self._blank()
            self.trajectory.retries, self.trajectory.failed_tokens = failed.retries + 1, lost
            return "reset"
        failed.failed_tokens = lost
        failed.fail(error)
        return "over"

    def _over(self, reason: EndReason) -> Next:
        self.trajectory.stop(reason)
        return "verdict" if self.trajectory.awaits_verdict else "over"

    def _blank(self) -> Trajectory:
        request, keeps = self.request, self._settings.keeps_reward
        return Trajectory(request.task_id, request.group, seed=request.seed, keeps_reward=keeps)
