"""One episode while it is played: its requests to the player, its record, and what comes next."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from eh_gym.errors import SamplerError, WorkerError
from eh_gym.vector.thread import ResetResult, StepResult
from harness.agents.protocol import AgentProgram, ModelCall
from harness.rollout.ahead import Ahead
from harness.rollout.conversation import Conversation, Converse, NoRoom, UnreadableRequestError
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import EndReason, Trajectory

RETRIES = 2
"""How often an episode starts again after its environment failed, before it is dropped."""

Next = Literal["turn", "wait", "step", "reset", "verdict", "over"]
"""What an episode needs next: a reply ("wait": to a request that is out), the environment's answer to `action`, another
attempt, the verdict of an agent that was stopped, or nothing."""


class Episode:
    """The episode of one request, over all its attempts.

    Args:
        session: The episode's name at the player.
        request: The task and the seed.
        settings: How episodes are played.
        converse: Begins the conversation of each attempt.

    Attributes:
        trajectory: The record of the present attempt.
        program: The agent program of the present attempt; None for an environment.
        ahead: The requests for calls of an agent that wait behind the present one.
        replies: The replies by the names of their requests.
        action: What the environment is to receive.
    """

    def __init__(self, session: int, request: EpisodeRequest, settings: Rollout, converse: Converse) -> None:
        self.session, self.request = session, request
        self.settings, self._converse = settings, converse
        self._conversation: Conversation | None = None
        self.ahead = Ahead(session)
        self._present: Hashable = session  # names the present turn's request; None while the environment steps
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
        self.replies: dict[Hashable, Any] = {}
        self._requested: dict[Hashable, float] = {}  # when each went out, in seconds
        self._drawn: Counter[str] = Counter()  # how often each prompt of an agent has been requested

    @property
    def awaits_reply(self) -> bool:
        """Whether the present turn's reply has not come. Meanwhile an agent may make further calls."""
        return self.program is not None and self._present is not None

    @property
    def sessions(self) -> set[Hashable]:
        """The names of all requests that may be out."""
        return {self.session, *self.ahead.names}

    def reset_answered(self, answer: Future[ResetResult]) -> Next:
        """Waits for the answer to the reset, and records it."""
        self.ahead.clear()  # until now `sessions` has named the last attempt's requests
        self._present = self.session
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

    def turns(self, room: int) -> list[Any]:
        """The requests that can go out now: the present turn's, and at most `room` for calls that wait behind it."""
        assert self._conversation is not None, "reset_answered() comes before a turn"
        requests = []
        if self._present == self.session and self.session not in self._requested:
            requests.append(self._request(self.session, self._conversation.prompt()))
        if self.program is not None:
            if self.trajectory.horizon:
                room = min(room, self.trajectory.horizon - self.trajectory.length - 1 - len(self.ahead))
            for call in self.ahead.new(self.program.waiting(), room):
                try:
                    prompt = self._conversation.prompt(call)
                except (UnreadableRequestError, NoRoom):
                    self.ahead.refuse(call)
                else:
                    requests.append(self._request(self.ahead.add(call, prompt), prompt, call))
        return requests

    def _request(self, name: Hashable, prompt: Sequence[Any], call: ModelCall | None = None) -> Any:
        assert self._conversation is not None
        self._requested[name] = time.perf_counter()
        return self._conversation.request(name, prompt, derive_seed(self.request.seed, *self._draw(prompt)), call)

    def _draw(self, prompt: Sequence[Any]) -> tuple[int | str, ...]:
        """What derives a turn's seed: its number; for an agent, whose calls have no order, its text and count."""
        if self.program is None:
            return "turn", self.trajectory.length
        text = hashlib.sha256(str(prompt).encode()).hexdigest()
        self._drawn[text] += 1
        return "call", text, self._drawn[text]

    def act(self) -> Next:
        """Records the present turn if its reply has come, and sets `action`."""
        if self._present not in self.replies:
            return "wait"
        reply, requested = self.replies.pop(self._present), self._requested.pop(self._present)
        self._present = None
        assert self._conversation is not None, "reset_answered() comes before an action"
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
            self.trajectory.fail_by_agent(failure)
            return self._over("terminated")
        turn.latency_s = round(time.perf_counter() - requested, 3)
        self.trajectory.turns.append(turn)
        return "step"

    def step_answered(self, answer: Future[StepResult]) -> Next:
        """Waits for the answer to the last action, or for an agent's verdict, and records it."""
        trajectory = self.trajectory
        try:
            result = answer.result()
        except WorkerError as failure:
            return self._failed(failure)
        if trajectory.awaits_verdict:
            trajectory.add_verdict(result)
            return "over"
        assert self._conversation is not None, "reset_answered() comes before an answer"
        end, info = trajectory.add_answer(result), result[4]
        if end == "environment-error":
            return self._failed(trajectory.error or "")
        if end is not None:
            return "verdict" if trajectory.awaits_verdict else "over"
        try:
            self._conversation.answered(info)
            self._present = self.ahead.take(info.get("call"), self._conversation.prompt()) or self.session
        except UnreadableRequestError as error:
            trajectory.fail_by_agent(error)
            return self._over("terminated")
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
            failed.fail_by_agent(error, trace)
            return self._over("terminated")
        failed.failed_tokens += failed.tokens
        failed.fail(error)
        return "over"

    def _over(self, reason: EndReason) -> Next:
        self.trajectory.stop(reason)
        return "verdict" if self.trajectory.awaits_verdict else "over"
