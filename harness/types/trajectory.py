"""One episode as the trainer sees it: its token ids, what was said, and why it ended.

An episode is a growing list of token ids with a mask of those that the model wrote. If an agent program changes its
history, the episode has several such lists. All players (a model, an endpoint or a script) hand the environment's
answers to `Trajectory.begin` and `Trajectory.add_answer`, so the end of an episode is decided in one place.
`eh_gym.checked` has checked the answers.
"""

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eh_gym.horizon.controller import EpisodeOutcome
from eh_gym.rewards import result_of, settled
from eh_gym.vector.thread import StepResult
from harness.types.sampler import Sample

EndReason = Literal["terminated", "horizon", "truncated", "context", "environment-error"]
ENDS: Mapping[str, str] = {
    "terminated": "ended by the task's rules",
    "horizon": "stopped by K",
    "truncated": "stopped by the environment's own limit",
    "context": "the context was full",
    "environment-error": "the environment failed",
}
"""The reasons in words."""
TRUNCATED: tuple[EndReason, ...] = ("horizon", "truncated", "context")
"""The reasons that stop an episode before its task's rules end it: K, the environment's own limit, the model's
context."""

KINDS = ("environment", "category", "difficulty", "kind", "scenario")
"""The kinds of parts that evaluations report separately, if the environment names them in the info of a reset."""

LENGTH_BINS = (("steps_1_10", 10.0), ("steps_11_20", 20.0), ("steps_21_30", 30.0), ("steps_31_up", math.inf))
"""The groups of episode lengths that some metrics are reported for: the name of each, and its greatest length in
steps."""


@dataclass
class Turn:
    """One step: what the model wrote and what came back.

    Attributes:
        action: What the environment received: the answer, without the thought.
        observation: What it returned, as the model saw it.
        cut: Whether the action was cut at the most tokens that an action may have.
        malformed: Whether the action was not a valid call.
        action_tokens: The number of ids that the model sampled, including its thought and the stop token; behind an
            endpoint, as it counts them.
        observation_tokens: The number of ids that followed, up to the next action; 0 if the episode ended.
        reasoning_tokens: The number of ids of the thought, including its tags.
        unfinished: Whether the thought never ended, so that there was no action.
        prompt_tokens: The number of tokens in the request, as an endpoint counts them. Without an endpoint it is 0,
            except in a turn that begins another sequence of ids.
        latency_s: The seconds from the request to the answer; ignored when two turns are compared.
        results: The result of each call, if the environment returns them separately, as for calls in a model's own
            form.
        new_tools: The functions that are offered from this turn on.
    """

    action: str
    observation: str = ""
    cut: bool = False
    malformed: bool = False
    action_tokens: int = 0
    observation_tokens: int = 0
    reasoning: str = ""
    reasoning_tokens: int = 0
    unfinished: bool = False
    prompt_tokens: int = 0
    latency_s: float = field(default=0.0, compare=False)
    results: list[str] = field(default_factory=list)
    new_tools: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class TokenSequence:
    """Tokens that one pass of the model can score: before each sampled token are the tokens that the model saw.

    Attributes:
        group: The index of the task in its update. Sequences of a group begin with the same tokens.
        ids: All tokens.
        action_mask: For each token, 1 if the model sampled it, else 0.
        logprobs: For each sampled token, its log-probability when it was sampled; for any other token, 0.0.
    """

    group: int
    ids: list[int]
    action_mask: list[int]
    logprobs: list[float]


@dataclass
class Trajectory:
    """One episode.

    Attributes:
        group: The index of the task in its update; the episodes of a group share it.
        seed: The environment and the sampled turns derive their seeds from it.
        horizon: The K of this episode; 0 for no limit.
        ids: All tokens; if the episode is several sequences, those of the last one.
        action_mask: For each of `ids`, 1 if the model sampled it, else 0.
        logprobs: For each of `ids` that was sampled, its log-probability when it was sampled; for any other one, 0.0.
        earlier: The sequences before the last one.
        versions: For each sample, the number of policy updates that its weights had seen. If the weights changed
            meanwhile, there are several numbers.
        system_prompt: With the functions on offer, for the log.
        prompt: The first observation, for the log.
        reward: What the episode has earned, by the rule in `eh_gym.rewards`.
        keeps_reward: Whether a truncated episode keeps what it has earned.
        unscored: Whether nobody knows what it has earned, because the agent failed; `settle` then decides.
        retries: How often the episode was started again because its environment had failed.
        failed_tokens: The tokens of all failed attempts, including this one if `end` is "environment-error".
        failure: The check that failed (``info["failure"]`` at the end), or why the agent failed, or None.
        trace: The traceback of an agent that failed, or the end of its stderr.
        optimal_steps: The number of steps that the expert takes, if the environment knows it. It is not a lower bound:
            a lucky guess can be shorter.
        info: The info that the reset returned, without the system prompt, the tools and an agent's request.
        threshold: The least reward of a success, if the environment gave no verdict, so that the reward decided.
    """

    task_id: str
    group: int
    horizon: int = 0
    seed: int = 0
    ids: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    earlier: list[TokenSequence] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    system_prompt: str = ""
    tools: list[Any] = field(default_factory=list)
    prompt: str = ""
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    keeps_reward: bool = False
    unscored: bool = False
    success: bool = False
    end: EndReason = "terminated"
    error: str | None = None
    retries: int = 0
    failed_tokens: int = 0
    failure: Any = None
    trace: str = ""
    optimal_steps: int | None = None
    info: dict[str, Any] = field(default_factory=dict)
    threshold: float | None = None

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        self.tools = list(info.get("tools", ()))
        functions = [json.dumps(tool, ensure_ascii=False) for tool in self.tools]
        self.system_prompt = "\n".join([info["system_prompt"], *functions])
        self.prompt = observation
        self.horizon = int(info.get("horizon", 0))
        known = info.get("optimal_steps")
        self.optimal_steps = int(known) if isinstance(known, numbers.Integral) else None  # JSON can't hold numpy's
        apart = ("system_prompt", "tools", "call", "agent_program", "failure", "trace")
        self.info = {name: value for name, value in info.items() if name not in apart}

    def add_answer(self, answer: StepResult) -> EndReason | None:
        """Records the answer of ``env.step`` to the last turn, and decides whether the episode is over.

        Returns:
            Why the episode ended, which is then also its `end`; None while it goes on.
        """
        observation, reward, terminated, truncated, info = answer
        turn = self.turns[-1]
        turn.observation, turn.malformed = observation, turn.malformed or bool(info.get("malformed", False))
        turn.results = list(info.get("tool_results", ()))
        self.threshold = info.get("success_threshold")
        if tools := info.get("tools"):
            known = [*self.tools, *(tool for turn in self.turns for tool in turn.new_tools)]
            turn.new_tools = [tool for tool in tools if tool not in known]
        if "environment_error" in info:
            return self.fail(str(info["environment_error"]))
        self.reward += float(reward)
        if terminated:
            self.success, self.failure, self.trace = bool(info["success"]), info.get("failure"), info.get("trace", "")
            self.unscored = "agent" in self.info and self.failure is not None
            return self.stop("terminated")
        if truncated:
            return self.stop("horizon" if info.get("TimeLimit.truncated") else "truncated")
        return None

    def stop(self, reason: EndReason) -> EndReason:
        self.end = reason
        ended, keep = not self.truncated, self.keeps_reward
        self.reward, self.success = result_of(self.reward, ended=ended, verdict=self.success, keep=keep)
        return reason

    @property
    def awaits_verdict(self) -> bool:
        """Whether the episode was stopped, and keeps what its agent then says that it has earned."""
        return self.truncated and self.keeps_reward and "agent" in self.info

    def add_verdict(self, answer: StepResult) -> None:
        _, reward, *_, info = answer
        self.reward, self.failure = float(reward), info["failure"]
        self.unscored = self.failure is not None

    def fail_by_agent(self, why: str | BaseException, trace: str = "") -> None:
        """Records that the agent has failed. The episode then ends, and counts as a failure."""
        self.failure, self.trace, self.unscored, self.reward = str(why), trace, True, 0.0

    def fail(self, error: str | BaseException) -> EndReason:
        self.end, self.error, self.trace = "environment-error", str(error), "\n".join(getattr(error, "__notes__", ()))
        return self.end

    @property
    def fault(self) -> str:
        """What went wrong in the environment or in the agent program itself; empty if the model decided the episode."""
        if self.end == "environment-error":
            return self.error or "unknown"
        return str(self.failure) if self.unscored and not self.truncated else ""

    def add_prompt(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.action_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_sample(self, sample: Sample) -> None:
        self.ids += sample.ids
        self.action_mask += [1] * len(sample.ids)
        self.logprobs += sample.logprobs
        self.versions += [version for version, _ in sample.versions]

    def go_on(self, ids: list[int]) -> int:
        """Continues with the next text that the model reads: in the present sequence, in an earlier one, or in a new
        one.

        An agent may come back to an earlier sequence, for example when a sub-agent has ended. `ids` are the whole
        conversation.

        Returns:
            The number of ids that were added to the sequence; 0 if a new one begins.
        """
        sequences = self.sequences
        # the longest sequence that the text continues
        known = max((len(s.ids) for s in sequences if ids[: len(s.ids)] == s.ids), default=0)
        begun = (s for s in sequences if known == len(s.ids) and s.ids == ids[:known])
        now = next(begun, TokenSequence(self.group, [], [], []))
        self.earlier = [s for s in sequences if s is not now]
        self.ids, self.action_mask, self.logprobs = now.ids, now.action_mask, now.logprobs
        self.add_prompt(ids[known:])
        return len(ids) - known if known else 0

    @property
    def sequences(self) -> list[TokenSequence]:
        return [*self.earlier, TokenSequence(self.group, self.ids, self.action_mask, self.logprobs)]

    @property
    def length(self) -> int:
        return len(self.turns)

    @property
    def tokens(self) -> int:
        return sum(len(sequence.ids) for sequence in self.sequences)

    @property
    def kinds(self) -> dict[str, str]:
        """The parts of a benchmark that the task belongs to, as the environment's info names them; see `KINDS`."""
        return {name: str(self.info[name]) for name in KINDS if self.info.get(name) is not None}

    @property
    def truncated(self) -> bool:
        return self.end in TRUNCATED

    @property
    def action_tokens(self) -> int:
        return sum(sum(sequence.action_mask) for sequence in self.sequences)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the first prompt; 0 if it is not known, as behind an endpoint."""
        later = sum(turn.prompt_tokens + turn.action_tokens + turn.observation_tokens for turn in self.turns)
        return self.tokens - later if self.ids else 0

    def outcome(self) -> EpisodeOutcome:
        steps = max(1, self.length)
        return EpisodeOutcome(steps, self.horizon or steps, self.success, self.truncated, self.task_id, self.info)


def by_group(trajectories: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    groups: dict[int, list[Trajectory]] = {}
    for t in trajectories:
        if t.end != "environment-error":
            groups.setdefault(t.group, []).append(t)
    return groups


def settle(trajectories: Sequence[Trajectory]) -> None:
    """Sets the rewards that are not known, by those of the same task and update; see `eh_gym.rewards.settled`."""
    for group in by_group(trajectories).values():
        for t, reward in zip(group, settled([None if t.unscored else t.reward for t in group]), strict=True):
            t.reward = reward
