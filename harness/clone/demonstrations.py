"""Episodes of an environment's own expert, for a tiny model's tokenizer and for cloning."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from eh_gym.errors import WorkerError
from harness.rollout.conversation import EnvironmentConversation
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from harness.chat.chat import ChatFormat


def demonstration(
    env: gym.Env[str, str],
    task_id: str,
    *,
    waste: float,
    max_steps: int,
    rng: np.random.Generator,
    max_optimal_steps: int = 0,
    group: int = 0,
    chat: ChatFormat | None = None,
) -> Trajectory | None:
    """Plays one task as an expert that wastes steps.

    Args:
        env: An environment that `envs.expert.check_expert` accepts.
        task_id: The task.
        waste: The probability that a step is a random action.
        max_steps: The number of steps after which the episode is stopped, with the reason "context".
        rng: Draws the episode's seed and the wasted steps.
        max_optimal_steps: The most steps that the expert may need, by ``info["optimal_steps"]`` or else in this
            episode; 0 for no limit.
        group: The trajectory's group.
        chat: Writes the episode in token ids, too. None leaves the trajectory without ids.

    Returns:
        The episode, or None if the task is too long.

    Raises:
        WorkerError: The environment failed. The message names the task.
    """
    base: Any = env.unwrapped
    seed = int(copy.deepcopy(rng).integers(2**31))  # from a copy: the wasted steps do not depend on it
    played = Trajectory(task_id, group, seed=seed)
    try:
        observation, info = env.reset(**EpisodeRequest(task_id, group, seed).reset_arguments())
        played.begin(observation, info)
        if chat is not None:
            written = EnvironmentConversation(chat, sys.maxsize, played, info, Rollout())
            played.system_prompt = info["system_prompt"]  # without the functions, which do not count in `_batches`
        needed = played.optimal_steps or 0
        while played.length < max_steps:
            wasted = rng.random() < waste
            needed += played.optimal_steps is None and not wasted
            if 0 < max_optimal_steps < needed:
                return None
            action = base.random_action(rng) if wasted else base.expert()
            played.turns.append(Turn(action))
            if chat is not None:
                ids = chat.reply_ids(action)
                written.act(Sample(ids, [0.0] * len(ids), "stop", 0))
            answer: Any = env.step(action)
            end = played.add_answer(answer)
            if end == "environment-error":
                raise WorkerError(played.error)
            if end is not None:
                return played
            if chat is not None:
                written.answered(answer[4])
    except WorkerError as failure:
        raise WorkerError(f"task {task_id}: the environment failed: {failure}") from failure
    played.stop("context")
    return played
