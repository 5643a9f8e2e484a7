"""Lockstep rollouts: all live episodes take a turn together, until every requested episode has ended.

Each episode draws from its own seeds, and everything is done in slot order, so the same requests give the same
trajectories however threads and environments are timed. Left out: turns without a barrier between slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eh_gym.errors import WorkerError
from eh_gym.vector import ThreadVectorEnv
from harness.chat import ChatFormat
from harness.sampling.base import Sample, Sampler, SampleRequest, sample_all
from harness.seeding import derive_seed
from harness.trajectory import EndReason, Trajectory, Turn

__all__ = ["EpisodeRequest", "announce", "rollout"]


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


@dataclass
class _Live:
    index: int
    request: EpisodeRequest
    trajectory: Trajectory


def rollout(
    envs: ThreadVectorEnv,
    sampler: Sampler,
    chat: ChatFormat,
    requests: Sequence[EpisodeRequest],
    *,
    horizon: int | Callable[[str, int], int],
    temperature: float,
    max_action_tokens: int,
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays every request and returns the trajectories in the same order.

    Args:
        envs: The slots; each env is wrapped in ElasticTimeLimit, or not, by whoever made them.
        sampler: Samples the actions.
        chat: Turns texts into ids.
        requests: The episodes; more than there are slots wait for a free one.
        horizon: The K that the slots give to an episode that starts now, or what tells it from the task id and the seed of
            the reset; 0 if they have no limit. For the record.
        temperature: Of the sampled actions; 0 is greedy.
        max_action_tokens: The most tokens of one action; a longer one is cut and sent as it is.
        on_end: Called with each trajectory as it ends.
    """
    waiting = deque(enumerate(requests))
    live: dict[int, _Live] = {}
    done: dict[int, Trajectory] = {}

    def end(slot: int, reason: EndReason, error: str | None = None) -> None:
        episode = live.pop(slot)
        episode.trajectory.end, episode.trajectory.error = reason, error
        sampler.end_session(episode.index)
        done[episode.index] = episode.trajectory
        on_end(episode.trajectory)

    while waiting or live:
        free = [slot for slot in range(envs.num_envs) if slot not in live]
        resets = []
        for slot in free[: len(waiting)]:
            index, request = waiting.popleft()
            seed = derive_seed(request.seed, "reset") % 2**31
            k = horizon if isinstance(horizon, int) else horizon(request.task_id, seed)
            live[slot] = _Live(index, request, Trajectory(request.task_id, request.group, k))
            resets.append((slot, envs.submit_reset(slot, seed=seed, options={"task_id": request.task_id})))
        for slot, reset in resets:
            trajectory = live[slot].trajectory
            try:
                observation, info = reset.result()
            except WorkerError as failure:
                end(slot, "environment-error", str(failure))
                continue
            trajectory.prompt = observation
            trajectory.optimal_steps = info.get("optimal_steps")
            trajectory.add_prompt(chat.prompt_ids(info["system_prompt"], observation))
        if resets:
            announce(envs, [request.task_id for _, request in waiting])

        for slot in sorted(live):
            if len(live[slot].trajectory.ids) >= sampler.max_context:
                end(slot, "context")
        slots = sorted(live)
        turns = [_turn_request(live[slot], sampler, chat, temperature, max_action_tokens) for slot in slots]
        steps = []
        for slot, sample in zip(slots, sample_all(sampler, turns), strict=True):
            live[slot].trajectory.add_sample(sample)
            action = chat.reply_text(sample.ids)
            steps.append((slot, sample, action, envs.submit_step(slot, action)))
        for slot, sample, action, step in steps:
            observation, reward, terminated, truncated, info = step.result()
            reason = _record_step(
                live[slot].trajectory, sample, action, (observation, reward, terminated, truncated, info)
            )
            if reason is not None:
                end(slot, reason, info.get("environment_error"))
            else:
                ids = chat.observation_ids(observation, stopped=sample.finish_reason == "stop")
                live[slot].trajectory.add_prompt(ids)
    return [done[i] for i in range(len(requests))]


def announce(envs: ThreadVectorEnv, task_ids: Sequence[str]) -> None:
    """Tells environments which can make an episode's start ready ahead of its reset what is played next.

    Such an environment has a method ``prepare(task_ids)``, which returns at once and serves all of its kind. As many are
    asked for as there are slots.
    """
    ahead = getattr(envs.envs[0].unwrapped, "prepare", None)
    if ahead is not None:
        ahead(list(task_ids[: envs.num_envs]))


def _turn_request(
    live: _Live, sampler: Sampler, chat: ChatFormat, temperature: float, max_action_tokens: int
) -> SampleRequest:
    trajectory = live.trajectory
    return SampleRequest(
        session=live.index,
        prompt_ids=trajectory.ids,
        max_tokens=min(max_action_tokens, sampler.max_context - len(trajectory.ids)),
        seed=derive_seed(live.request.seed, "turn", trajectory.length),
        temperature=temperature,
        stop_ids=chat.stop_ids,
    )


def _record_step(
    trajectory: Trajectory, sample: Sample, action: str, step: tuple[str, Any, bool, bool, dict[str, Any]]
) -> EndReason | None:
    """Adds one step to the trajectory; returns why the episode ended, or None if it goes on."""
    observation, reward, terminated, truncated, info = step
    cut = sample.finish_reason == "length"
    trajectory.turns.append(Turn(action, observation, cut, bool(info.get("malformed", False))))
    trajectory.reward += float(reward)
    if "environment_error" in info:
        return "environment-error"
    if terminated:
        trajectory.success = bool(info["success"])
        return "terminated"
    if truncated:
        return "horizon" if info.get("TimeLimit.truncated") else "truncated"
    return None
