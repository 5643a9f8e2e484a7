"""Episodes of an environment's own expert, for a tiny model's tokenizer and for cloning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from eh_gym import ThreadVectorEnv
from eh_gym.errors import WorkerError
from harness.rollout.conversation import Conversation, Info, NoRoom
from harness.rollout.rollout import play
from harness.rollout.script import Script, ScriptConversation
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory

Action = Callable[[], str]


class Expert:
    """Plays the tasks of an environment as an expert that wastes steps.

    Args:
        env: An environment that `envs.expert.check_expert` accepts. It stays open.
        converse: Makes the `Conversation` of an attempt from the trajectory, the info of the reset, and the function
            that returns the next action. By default it records the texts alone.
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        converse: Callable[[Trajectory, Info, Action], Conversation] = lambda _, __, action: ScriptConversation(action),
    ) -> None:
        self._base: Any = env.unwrapped
        self._envs = ThreadVectorEnv([lambda: _Open(env)], 0)
        self._converse = converse

    def play(
        self,
        task_id: str,
        *,
        waste: float,
        max_steps: int,
        rng: np.random.Generator,
        max_optimal_steps: int = 0,
        group: int = 0,
    ) -> Trajectory | None:
        """Plays one task. If the environment fails, the episode is played again with the same draws.

        Args:
            task_id: The task.
            waste: The probability that a step is a random action.
            max_steps: The number of steps after which the episode is stopped, with the reason "context".
            rng: Draws the episode's seed and the wasted steps.
            max_optimal_steps: The most steps that the expert may need, by ``info["optimal_steps"]`` or else in this
                episode; 0 for no limit.
            group: The trajectory's group.

        Returns:
            The episode, or None if the task is too long.
        """
        begin = copy.deepcopy(rng.bit_generator.state)
        seed = int(copy.deepcopy(rng).integers(2**31))  # from a copy: the wasted steps do not depend on it
        too_long = False

        def converse(trajectory: Trajectory, info: Info, _: Rollout) -> Conversation:
            rng.bit_generator.state = begin
            unknown = trajectory.optimal_steps is None
            needed = trajectory.optimal_steps or 0

            def action() -> str:
                nonlocal needed, too_long
                if trajectory.length == max_steps:
                    raise NoRoom(f"{max_steps} steps are the most")
                wasted = rng.random() < waste
                needed += unknown and not wasted
                too_long = 0 < max_optimal_steps < needed
                if too_long:
                    raise NoRoom(f"the expert needs more than {max_optimal_steps} steps")
                chosen: str = self._base.random_action(rng) if wasted else self._base.expert()
                return chosen

            return self._converse(trajectory, info, action)

        request = EpisodeRequest(task_id, group, seed)
        [played] = play(self._envs, Script(), converse, [request], Rollout(rollout="lockstep"))
        if played.end == "environment-error":
            error = WorkerError(f"task {task_id}: the environment failed {played.retries + 1} times: {played.error}")
            error.add_note(played.trace)
            raise error
        return None if too_long else played


class _Open(gym.Wrapper[str, str, str, str]):
    """An environment that its vector environment does not close."""

    def close(self) -> None: ...
