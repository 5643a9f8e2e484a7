"""One episode while it is played: its requests to the sampler, its record, and whether it goes on, starts again or is over.

`slots` decides where an episode plays; `lockstep` and `streaming` decide the order in which episodes take their turns.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

from eh_gym.errors import WorkerError
from eh_gym.vector.thread import ResetResult, StepResult
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sample, SampleRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import EndReason, Trajectory, Turn

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.policy.chat import ChatFormat

__all__ = ["Episode", "Next"]

Next = Literal["turn", "reset", "over"]
"""What an episode needs after its environment has answered."""


class Episode:
    """The episode of one request, over all its attempts.

    Args:
        session: The episode's name in the sampler.
        request: Which episode to play.
        rules: What holds for every episode of the rollout.
        chat: Turns texts into ids.
        max_context: The most tokens that the sampler takes. A prompt that leaves no room for an action ends the episode
            with the reason "context". Nothing is ever removed from a conversation to make room.
    """

    def __init__(
        self, session: int, request: EpisodeRequest, rules: Rules, chat: ChatFormat, *, max_context: int
    ) -> None:
        self.session = session
        self.request = request
        self._rules, self._chat, self._max_context = rules, chat, max_context
        self._last: Sample | None = None
        self._asked = 0.0  # when the last turn was requested, in seconds
        self.trajectory = self._blank()

    def reset_arguments(self) -> dict[str, Any]:
        """The arguments of the environment's reset, which are the same in every attempt."""
        seed = derive_seed(self.request.seed, "reset") % 2**31
        return {"seed": seed, "options": {"task_id": self.request.task_id}}

    def reset_answered(self, answer: Future[ResetResult]) -> Next:
        """Records the first message of an attempt.

        Args:
            answer: The answer to the reset. If it is not there yet, this method waits for it.
        """
        try:
            observation, info = answer.result()
        except WorkerError as failure:
            return self._failed(str(failure))
        self.trajectory.begin(observation, info)
        # A first prompt that is too long is kept: otherwise the episode would be empty. It has no action, so no loss.
        self.trajectory.add_prompt(self._chat.prompt_ids(info["system_prompt"], observation))
        return "turn" if len(self.trajectory.ids) < self._max_context else self._over("context")

    def turn(self) -> SampleRequest:
        """The request of the next turn."""
        trajectory = self.trajectory
        self._asked = time.perf_counter()
        return SampleRequest(
            session=self.session,
            prompt_ids=trajectory.ids,
            max_tokens=min(self._rules.max_action_tokens, self._max_context - len(trajectory.ids)),
            seed=derive_seed(self.request.seed, "turn", trajectory.length),
            temperature=self._rules.temperature,
            stop_ids=self._chat.stop_ids,
        )

    def act(self, sample: Sample) -> str:
        """Records what the model wrote and returns it as the text that the environment receives."""
        self.trajectory.add_sample(sample)
        self._last = sample
        action = self._chat.reply_text(sample.ids)
        cut = sample.finish_reason == "length"
        turn = Turn(action, "", cut, malformed=False, action_tokens=len(sample.ids))
        turn.latency_s = round(time.perf_counter() - self._asked, 3)
        self.trajectory.turns.append(turn)
        return action

    def step_answered(self, answer: Future[StepResult]) -> Next:
        """Records the environment's answer to the last action.

        Args:
            answer: The answer to the step. If it is not there yet, this method waits for it.
        """
        try:
            answered = answer.result()
        except WorkerError as failure:
            return self._failed(str(failure))
        trajectory, sample = self.trajectory, self._last
        assert sample is not None, "act() comes before the answer"
        end = trajectory.add_answer(answered)
        if end == "environment-error":
            return self._failed(trajectory.error or "")
        if end is not None:
            return "over"
        turn = trajectory.turns[-1]
        ids = self._chat.observation_ids(turn.observation, stopped=sample.finish_reason == "stop")
        if len(trajectory.ids) + len(ids) >= self._max_context:
            return self._over("context")  # the observation is not added: no action would follow it
        trajectory.add_prompt(ids)
        turn.observation_tokens = len(ids)
        return "turn"

    def _failed(self, error: str) -> Next:
        """Starts the episode again with the same seed after its environment failed; ends it after the last retry."""
        failed = self.trajectory
        lost = failed.failed_tokens + len(failed.ids)
        if failed.retries < self._rules.environment_retries:
            self.trajectory = self._blank()
            self.trajectory.retries, self.trajectory.failed_tokens = failed.retries + 1, lost
            return "reset"
        failed.failed_tokens = lost
        failed.fail(error)
        return "over"

    def _over(self, reason: EndReason) -> Next:
        self.trajectory.end = reason
        return "over"

    def _blank(self) -> Trajectory:
        return Trajectory(self.request.task_id, self.request.group, seed=self.request.seed)
