"""One episode while it is played: its requests to the sampler, its record, and what comes next (a turn, a reset, or the end).

`slots` decides where an episode plays; `rollout` and `streaming` decide the order in which episodes take their turns.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

from eh_gym.errors import WorkerError
from eh_gym.vector.thread import ResetResult, StepResult
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

Next = Literal["turn", "reset", "over"]
"""What an episode needs after its environment has answered."""


class Episode:
    """The episode of one request, over all its attempts.

    A prompt that leaves no room for an action within `max_context` tokens ends the episode with the reason "context". Nothing
    is ever removed from a conversation to make room. `session` is the episode's name in the sampler.
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
        self._asked = 0.0  # when the last turn was requested, in seconds
        self.trajectory = self._blank()

    def reset_arguments(self) -> dict[str, Any]:
        """The arguments of the environment's reset. They are the same in every attempt."""
        seed = derive_seed(self.request.seed, "reset") % 2**31
        return {"seed": seed, "options": {"task_id": self.request.task_id}}

    def reset_answered(self, answer: Future[ResetResult]) -> Next:
        """Waits for the answer to the reset, and records the first message of an attempt."""
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

    def turn(self) -> SampleRequest:
        """The request of the next turn."""
        assert self._conversation is not None, "reset_answered() comes before a turn"
        self._begin = len(self.trajectory.ids)
        self._asked = time.perf_counter()
        most = min(self._settings.max_action_tokens, self._conversation.max_tokens or self._settings.max_action_tokens)
        return SampleRequest(
            session=self.session,
            prompt_ids=self.trajectory.ids,
            max_tokens=min(most, self._max_context - len(self.trajectory.ids)),
            seed=derive_seed(self.request.seed, "turn", self.trajectory.length),
            temperature=self._settings.temperature,
            stop_ids=self._chat.stop_ids,
        )

    def act(self, sample: Sample) -> str:
        """Records what the model wrote. Returns the text that the environment receives."""
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
                latency_s=round(time.perf_counter() - self._asked, 3),
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
        sample = self._last
        assert conversation is not None, "reset_answered() comes before an answer"
        assert sample is not None, "act() comes before the answer"
        end = trajectory.add_answer(answered)
        if end == "environment-error":
            return self._failed(trajectory.error or "")
        if end is not None:
            return "over"
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
        return "over"

    def _blank(self) -> Trajectory:
        request, keeps = self.request, self._settings.keeps_reward
        return Trajectory(request.task_id, request.group, seed=request.seed, keeps_reward=keeps)
