"""Plays the episodes of an evaluation at a fixed K: with a language model, or with a script that needs none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from eh_gym import FixedHorizon
from eh_gym.errors import ConfigError, WorkerError
from eh_gym.vector.thread import StepResult, ThreadVectorEnv
from envs.making import checked_environment
from harness.agents.env import AgentEnv
from harness.evaluation.endpoint import ContextFull
from harness.evaluation.requests import evaluation_requests
from harness.rollout.conversation import UNFINISHED
from harness.rollout.environment import Environments, check_environment, spec_of, tasks_of
from harness.rollout.episode import RETRIES
from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory, Turn

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat

__all__ = ["SCRIPTS", "evaluation_requests", "held_out_tasks", "play_all", "play_policy", "play_script"]

T = TypeVar("T")
Info = Mapping[str, Any]
Replies = AsyncGenerator[tuple[Turn, str], StepResult | None]
"""Who replies in an episode: yields each turn and its action, and is sent the environment's answer."""

SCRIPTS = ("expert", "random", "empty")
"""The players without a model: the environment's own expert, random actions, or empty actions."""

_GENERATED = 10_000  # a split with this many tasks is a generated one
_GENERATED_TASKS = 128


def play_policy(
    environments: Environments,
    sampler: Sampler,
    chat: ChatFormat,
    requests: Sequence[EpisodeRequest],
    settings: Rollout,
    *,
    horizon: int,
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays episodes with a language model at a fixed K. See `harness.rollout.rollout.rollout` for the other
    arguments.
    """
    if not requests:
        return []
    envs = environments.open(FixedHorizon(horizon), episodes=len(requests))
    try:
        return rollout(envs, sampler, chat, requests, settings, on_end=on_end)
    finally:
        envs.close()


def play_script(
    name: str,
    environments: Environments,
    requests: Sequence[EpisodeRequest],
    *,
    horizon: int,
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays episodes without a model; `name` is one of `SCRIPTS`."""
    envs = environments.open(FixedHorizon(horizon), episodes=1)
    base: Any = envs.envs[0].unwrapped
    needed = {"expert": "expert", "random": "random_action"}.get(name)

    async def replies(trajectory: Trajectory, info: Info) -> Replies:
        rng = np.random.default_rng(trajectory.seed)
        while True:
            action = {"expert": lambda: base.expert(), "random": lambda: base.random_action(rng)}.get(name, str)()
            yield Turn(action, "", cut=False, malformed=False), action

    try:
        if needed and not hasattr(base, needed):
            raise ConfigError(
                f"--policy {name} needs an environment with {needed}(), which {base!r} lacks; choose another"
            )
        return run_to_the_end(play_all(replies, envs, requests, environments.keeps_reward, on_end))
    finally:
        envs.close()


async def play_all(
    replies: Callable[[Trajectory, Info], Replies],
    envs: ThreadVectorEnv,
    requests: Sequence[EpisodeRequest],
    keeps_reward: bool,
    on_end: Callable[[Trajectory], None],
) -> list[Trajectory]:
    """Plays every request in the slots, and returns the trajectories in the same order.

    `replies` says who replies in an attempt, from its trajectory and the info of its reset. If an environment fails,
    its episode is played again with the same seed, at most twice.
    """
    done: dict[int, Trajectory] = {}
    waiting = iter(enumerate(requests))

    async def play_in(slot: int) -> None:
        for index, request in waiting:
            for attempt in range(RETRIES + 1):
                done[index] = Trajectory(
                    request.task_id, request.group, seed=request.seed, retries=attempt, keeps_reward=keeps_reward
                )
                try:
                    await _play(replies, envs, slot, request, done[index])
                except WorkerError as failure:  # of a reset, or of the expert
                    done[index].fail(failure)
                if done[index].end != "environment-error":
                    break
            on_end(done[index])

    await asyncio.gather(*(play_in(slot) for slot in range(envs.num_envs)))
    return [done[index] for index in range(len(requests))]


async def _play(
    replies: Callable[[Trajectory, Info], Replies],
    envs: ThreadVectorEnv,
    slot: int,
    request: EpisodeRequest,
    trajectory: Trajectory,
) -> None:
    observation, info = await asyncio.wrap_future(envs.submit_reset(slot, **request.reset_arguments()))
    trajectory.begin(observation, info)
    answer, end = None, None
    async with aclosing(replies(trajectory, info)) as who:
        while end is None:
            try:
                turn, action = await who.asend(answer)
            except ContextFull:
                trajectory.stop("context")
                break
            trajectory.turns.append(turn)
            answer = await asyncio.wrap_future(envs.submit_step(slot, action))
            end = trajectory.add_answer(answer)
            if turn.unfinished:
                turn.observation = f"{UNFINISHED}\n{turn.observation}"
    env = envs.envs[slot].unwrapped
    if isinstance(env, AgentEnv):  # its agent may wait for an answer
        env.stop_agent(trajectory.end)
        if trajectory.awaits_verdict:
            trajectory.add_verdict(await asyncio.wrap_future(envs.submit_call(slot, env.verdict)))


def run_to_the_end(played: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end. In a notebook, which already runs an event loop, it runs in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(played)
    with ThreadPoolExecutor(1, thread_name_prefix="eh-evaluation") as thread:
        return thread.submit(asyncio.run, played).result()


def held_out_tasks(environments: Environments, count: int | None, *, every: int = 1) -> list[str]:
    """Returns the first `count` tasks of a split, or of every N-th task (`every`). None: all, or 128 of a generated
    split.
    """
    env = checked_environment(spec_of(environments.env_id), environments.args)
    task_ids = tasks_of(env)
    if not len(task_ids):
        raise ConfigError(
            f"{environments.env_id} has no task with the arguments {dict(environments.args)}; choose another split or "
            "category"
        )
    check_environment(env)
    if count is None:
        count = -(-len(task_ids) // every) if len(task_ids) < _GENERATED else _GENERATED_TASKS
    env.close()
    return list(task_ids[: count * every : every])
