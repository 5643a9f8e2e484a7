"""Plays the episodes of an evaluation at a fixed K: with a language model, or with a script that needs none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from eh_gym import FixedHorizon
from eh_gym.errors import ConfigError, WorkerError
from envs.description import Description, description_of
from harness.evaluation.requests import evaluation_requests
from harness.rollout.environment import Environments, check_environment, tasks_of
from harness.rollout.rollout import rollout
from harness.rollout.slots import OnEnd
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sampler
from harness.types.trajectory import EndReason, Trajectory, Turn

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat

__all__ = ["SCRIPTS", "evaluation_requests", "held_out_tasks", "play_policy", "play_script", "scripts_of"]

SCRIPTS = ("expert", "random", "empty")
"""The players without a model: the environment's own expert, random actions, or empty actions."""


def scripts_of(env_id: str) -> tuple[str, ...]:
    return (*SCRIPTS, *(description_of(env_id) or Description).scripts)


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
    **callbacks: OnEnd,
) -> list[Trajectory]:
    if not requests:
        return []
    with closing(environments.open(FixedHorizon(horizon), episodes=len(requests))) as envs:
        return rollout(envs, sampler, chat, requests, settings, **callbacks)


def play_script(
    name: str,
    environments: Environments,
    requests: Sequence[EpisodeRequest],
    settings: Rollout,
    *,
    horizon: int,
    **callbacks: OnEnd,
) -> list[Trajectory]:
    needed = {"expert": "expert()", "random": "random_action(rng)"}.get(name)
    with closing(environments.make(FixedHorizon(horizon))) as env:
        base: Any = env.unwrapped
        if needed and not hasattr(base, needed.partition("(")[0]):
            raise ConfigError(
                f"--policy {name} needs an environment with {needed}, which {type(base).__name__} lacks; take another"
            )
        if hasattr(base, "stop_agent"):
            raise ConfigError(
                f"an agent needs a model, got --policy {name}; give --policy a folder or hub id, or openai"
            )
        return [_play_one(name, env, request, settings, **callbacks) for request in requests]


def _play_one(
    name: str,
    env: Any,
    request: EpisodeRequest,
    settings: Rollout,
    *,
    on_end: OnEnd = lambda _: None,
    on_turn: OnEnd = lambda _: None,
) -> Trajectory:
    """An episode is lost if its environment fails; it is not played again."""
    base, rng = env.unwrapped, np.random.default_rng(request.seed)

    def action() -> Any:
        if name == "empty":
            return ""
        if name == "random":
            return base.random_action(rng)
        return base.expert() if name == "expert" else base.script(name)

    played = Trajectory(request.task_id, request.group, seed=request.seed, keeps_reward=settings.keeps_reward)
    end: EndReason | None = None
    try:
        played.begin(*env.reset(**request.reset_arguments()))
        on_turn(played)
        while end is None:
            played.turns.append(Turn(action()))
            end = played.add_answer(env.step(played.turns[-1].action))
            on_turn(played)
    except WorkerError as failure:
        played.fail(failure)
    on_end(played)
    return played


def held_out_tasks(environments: Environments, count: int | None, *, every: int = 1) -> list[str]:
    """Returns the first `count` tasks of a split, or of every N-th one. None: all, or 128 of a generated split."""
    env = environments.make(None)
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
