"""Evaluates a run's policy on held-out tasks, before, between and after its updates.

Every call plays the same episodes with the same random numbers, at K = k_max. Left out: evaluating anything else than a run
under way, which is `harness.evaluate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec

from harness.config import GRPOConfig
from harness.display import Display
from harness.eval_result import EvalResult, summarise
from harness.evaluate import evaluate_policy, evaluation_requests, held_out_tasks
from harness.policy import Policy
from harness.ranks import Ranks
from harness.sampling.base import Sampler
from harness.seeding import derive_seed
from harness.trajectory import Trajectory

__all__ = ["HeldOut", "run_tasks"]


def run_tasks(config: GRPOConfig, env_id: str | EnvSpec) -> Sequence[str]:
    """The task ids that a run is evaluated on; none where it wants no evaluation."""
    if not config.eval_tasks:
        return ()
    return held_out_tasks(env_id, {**config.environment_args(), "split": config.eval_split}, config.eval_tasks)


@dataclass(frozen=True)
class HeldOut:
    """The held-out tasks, and who plays them.

    Attributes:
        config: The run's settings.
        env_id: What `gym.make` makes an environment from.
        tasks: The task ids.
        policy: Turns texts into ids and back.
        sampler: Samples with the weights that are evaluated.
        ranks: The processes that share the episodes.
    """

    config: GRPOConfig
    env_id: str | EnvSpec
    tasks: Sequence[str]
    policy: Policy
    sampler: Sampler
    ranks: Ranks

    def sampled_and_greedy(self, display: Display, when: str) -> dict[str, Any]:
        """Both results, as they stand in evaluation.json; nothing without tasks."""
        config, results = self.config, {}
        for name, temperature, rollouts in (("sampled", config.temperature, config.eval_rollouts), ("greedy", 0.0, 1)):
            if self.tasks:
                with display.episodes(f"{name} evaluation {when}", self.count(rollouts)) as on_end:
                    results[name] = dataclasses.asdict(self.play(temperature, rollouts, on_end))
        return results

    def count(self, rollouts: int) -> int:
        """How many episodes are this rank's, at so many per task."""
        return len(self.ranks.share(range(len(self.tasks) * rollouts)))

    def play(self, temperature: float, rollouts: int, on_end: Callable[[Trajectory], None]) -> EvalResult:
        """The result over all ranks' episodes; `on_end` is called with each of this rank's."""
        config = self.config
        played = evaluate_policy(
            self.policy,
            self.sampler,
            self.env_id,
            self.ranks.share(evaluation_requests(self.tasks, rollouts, derive_seed(config.seed, "evaluation"))),
            horizon=config.k_max,
            temperature=temperature,
            slots=config.slots or config.tasks_per_update * config.group_size,
            env_threads=config.env_threads,
            max_action_tokens=config.max_action_tokens,
            mode=config.rollout,
            environment_retries=config.environment_retries,
            env_args={**config.environment_args(), "split": config.eval_split},
            budget_hint=config.budget_hint,
            on_end=on_end,
        )
        return summarise(self.ranks.gather(played))
