"""One episode while it is played: its requests to the player, its record, and what comes next."""

import time
from concurrent.futures import Future
from typing import Any, Literal

from eh_gym.errors import SamplerError, WorkerError
from eh_gym.vector.thread import ResetResult, StepResult
from harness.agents.protocol import AgentProgram
from harness.rollout.conversation import Conversation, Converse, NoRoom, UnreadableRequestError
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.trajectory import EndReason, Trajectory

RETRIES = 2
"""How often an episode starts again after its environment failed, before it is dropped."""

Next = Literal["turn", "step", "reset", "verdict", "over"]
"""What an episode needs next: a reply, the environment's answer to `action`, another attempt, the verdict of an agent
that was stopped, or nothing."""


class Episode:
    """The episode of one request, over all its attempts.

    Attributes:
        trajectory: The record of the present attempt.
        program: The agent program of the present attempt; None for an environment.
        action: What the environment is to receive.
    """

    _conversation: Conversation  # of the present attempt, from its reset on

    def __init__(self, session: int, request: EpisodeRequest, settings: Rollout, converse: Converse) -> None:
        self.session, self.request = session, request
        self.settings, self._converse = settings, converse
        self._begin()

    def _begin(self, retries: int = 0, failed_tokens: int = 0) -> None:
        self.trajectory = Trajectory(
            self.request.task_id,
            self.request.group,
            seed=self.request.seed,
            keeps_reward=self.settings.keeps_reward,
            retries=retries,
            failed_tokens=failed_tokens,
        )
        self.program: AgentProgram | None = None

    def reset_answered(self, answer: Future[ResetResult]) -> Next:
        try:
            observation, info = answer.result()
            self.trajectory.begin(observation, info)
            self.program = info.get("agent_program")
            if "failure" in info:  # the agent ended before its first request
                return self._failed(info["failure"], by_agent=True, trace=info["trace"])
            self._conversation = self._converse(self.trajectory, info, self.settings)
        except WorkerError as failure:
            return self._failed(failure)
        except UnreadableRequestError as failure:
            return self._failed(failure, by_agent=self.program is not None)
        except NoRoom:
            return self._over("context")
        return "turn"

    def turn(self) -> Any:
        self._requested = time.perf_counter()
        return self._conversation.request(self.session)

    def act(self, reply: Any) -> Next:
        try:
            if isinstance(reply, Exception):
                raise reply
            turn, self.action = self._conversation.act(reply)
        except NoRoom:
            return self._over("context")
        except SamplerError as failure:  # of a hosted model: another attempt would be paid
            self.trajectory.fail(failure)
            return "over"
        except UnreadableRequestError as failure:
            return self._failed_by_agent(failure)
        turn.latency_s = round(time.perf_counter() - self._requested, 3)
        self.trajectory.turns.append(turn)
        return "step"

    def step_answered(self, answer: Future[StepResult]) -> Next:
        trajectory = self.trajectory
        try:
            result = answer.result()
        except WorkerError as failure:
            return self._failed(failure)
        if trajectory.awaits_verdict:
            trajectory.add_verdict(result)
            return "over"
        end, info = trajectory.add_answer(result), result[4]
        if end == "environment-error":
            return self._failed(trajectory.error or "")
        if end is not None:
            return "verdict" if trajectory.awaits_verdict else "over"
        try:
            self._conversation.answered(info)
        except UnreadableRequestError as failure:
            return self._failed_by_agent(failure)
        except NoRoom:
            return self._over("context")
        return "turn"

    def _failed(self, error: str | BaseException, *, by_agent: bool = False, trace: str = "") -> Next:
        """Begins another attempt with the same seed. After the last, the episode is lost, or the agent's failure."""
        failed = self.trajectory
        if failed.retries < RETRIES:
            self._begin(failed.retries + 1, failed.failed_tokens + failed.tokens)
            return "reset"
        if by_agent:
            return self._failed_by_agent(error, trace)
        failed.failed_tokens += failed.tokens
        failed.fail(error)
        return "over"

    def _failed_by_agent(self, error: str | BaseException, trace: str = "") -> Next:
        self.trajectory.fail_by_agent(error, trace)
        return self._over("terminated")

    def _over(self, reason: EndReason) -> Next:
        self.trajectory.stop(reason)
        return "verdict" if self.trajectory.awaits_verdict else "over"
