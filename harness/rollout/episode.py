"""One episode on its way: what it asks of the sampler, what it records, whether it goes on, begins again or is over.

Left out: slots, threads and the order of things; `Book` has the slots, `lockstep` and `streaming` the order.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from eh_gym.errors import WorkerError
from eh_gym.vector.thread import ResetResult, StepResult
from harness.chat import ChatFormat
from harness.sampling.base import Sample, SampleRequest
from harness.seeding import derive_seed
from harness.trajectory import EndReason, Trajectory, Turn

__all__ = ["Episode", "EpisodeRequest", "Next", "Rules"]

Next = Literal["turn", "reset", "over"]
"""What an episode needs after its environment has answered."""


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to play.

    Attributes:
        task_id: The task.
        group: Index of the task in its update.
        seed: The environment's reset and every sampled turn derive their seeds from it.
    """

    task_id: str
    group: int
    seed: int


@dataclass(frozen=True)
class Rules:
    """What holds for every episode of a rollout; the attributes are `rollout`'s arguments."""

    temperature: float
    max_action_tokens: int
    environment_retries: int


class Episode:
    """The episode of one request, over all its attempts.

    Args:
        session: Its name in the sampler.
        request: What is played.
        rules: How.
        chat: Turns texts into ids.
        max_context: The most tokens that the sampler takes. A prompt that leaves no room for an action ends the episode
            with the reason "context"; nothing is ever cut off a conversation to make room.
    """

    def __init__(
        self, session: int, request: EpisodeRequest, rules: Rules, chat: ChatFormat, *, max_context: int
    ) -> None:
        self.session = session
        self.request = request
        self._rules, self._chat, self._max_context = rules, chat, max_context
        self._last: Sample | None = None
        self.trajectory = self._blank()

    def reset_arguments(self) -> dict[str, Any]:
        """For the environment's reset; the same in every attempt."""
        seed = derive_seed(self.request.seed, "reset") % 2**31
        return {"seed": seed, "options": {"task_id": self.request.task_id}}

    def reset_answered(self, answer: Future[ResetResult]) -> Next:
        """Takes the first message of an attempt.

        Args:
            answer: Done, or waited for here.
        """
        try:
            observation, info = answer.result()
        except WorkerError as failure:
            return self._failed(str(failure))
        self.trajectory.system_prompt, self.trajectory.prompt = info["system_prompt"], observation
        self.trajectory.horizon = int(info.get("horizon", 0))
        self.trajectory.optimal_steps = info.get("optimal_steps")
        self.trajectory.info = {name: value for name, value in info.items() if name != "system_prompt"}
        # A first prompt that is too long is kept: there is nothing else to show, and no loss, which needs an action.
        self.trajectory.add_prompt(self._chat.prompt_ids(info["system_prompt"], observation))
        return "turn" if len(self.trajectory.ids) < self._max_context else self._over("context")

    def turn(self) -> SampleRequest:
        """The next turn's request."""
        trajectory = self.trajectory
        return SampleRequest(
            session=self.session,
            prompt_ids=trajectory.ids,
            max_tokens=min(self._rules.max_action_tokens, self._max_context - len(trajectory.ids)),
            seed=derive_seed(self.request.seed, "turn", trajectory.length),
            temperature=self._rules.temperature,
            stop_ids=self._chat.stop_ids,
        )

    def act(self, sample: Sample) -> str:
        """Records what the model wrote and returns it as the environment gets it."""
        self.trajectory.add_sample(sample)
        self._last = sample
        action = self._chat.reply_text(sample.ids)
        cut = sample.finish_reason == "length"
        self.trajectory.turns.append(Turn(action, "", cut, malformed=False, action_tokens=len(sample.ids)))
        return action

    def step_answered(self, answer: Future[StepResult]) -> Next:
        """Takes the environment's answer to the last action.

        Args:
            answer: Done, or waited for here.
        """
        try:
            observation, reward, terminated, truncated, info = answer.result()
        except WorkerError as failure:
            return self._failed(str(failure))
        trajectory, sample = self.trajectory, self._last
        assert sample is not None, "act() comes before the answer"
        turn = trajectory.turns[-1]
        turn.observation, turn.malformed = observation, bool(info.get("malformed", False))
        if "environment_error" in info:
            return self._failed(str(info["environment_error"]))
        if not math.isfinite(reward):  # one such advantage would make every gradient of the update NaN
            return self._failed(f"the environment gave the reward {reward}, which is no finite number")
        trajectory.reward += float(reward)
        if terminated:
            trajectory.success = bool(info["success"])
            return self._over("terminated")
        if truncated:
            return self._over("horizon" if info.get("TimeLimit.truncated") else "truncated")
        ids = self._chat.observation_ids(observation, stopped=sample.finish_reason == "stop")
        if len(trajectory.ids) + len(ids) >= self._max_context:
            return self._over("context")  # the observation stays out: no token of the model's would follow it
        trajectory.add_prompt(ids)
        turn.observation_tokens = len(ids)
        return "turn"

    def _failed(self, error: str) -> Next:
        """The environment failed: begins again with the same seed, or drops the episode after the last retry."""
        failed = self.trajectory
        lost = failed.failed_tokens + len(failed.ids)
        if failed.retries < self._rules.environment_retries:
            self.trajectory = self._blank()
            self.trajectory.retries, self.trajectory.failed_tokens = failed.retries + 1, lost
            return "reset"
        failed.failed_tokens = lost
        failed.error = error
        return self._over("environment-error")

    def _over(self, reason: EndReason) -> Next:
        self.trajectory.end = reason
        return "over"

    def _blank(self) -> Trajectory:
        return Trajectory(self.request.task_id, self.request.group, seed=self.request.seed)
