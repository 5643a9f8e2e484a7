"""Evaluates the policy of a run on held-out tasks: before, between and after its updates.

Every call plays the same episodes with the same random numbers, at the same K.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec

from harness.evaluation.play import evaluation_requests, held_out_tasks, play_policy
from harness.evaluation.result import EvalResult, summarise
from harness.evaluation.saturation import saturation
from harness.machine.ranks import Ranks
from harness.model.policy import Policy
from harness.records.episode_log import episode_line
from harness.rollout.environment import Environments
from harness.rollout.faults import check_faults
from harness.settings.grpo import GRPOConfig
from harness.terminal.display import Display, UpdateBars
from harness.types.sampler import Sampler
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory


@dataclass(frozen=True)
class HeldOutEvaluator:
    """The held-out tasks, and the sampler and environments that play them. Without tasks nothing is evaluated."""

    config: GRPOConfig
    environments: Environments
    tasks: Sequence[str]
    policy: Policy
    sampler: Sampler
    ranks: Ranks

    @staticmethod
    def choose(config: GRPOConfig, env_id: str | EnvSpec, ranks: Ranks) -> tuple[Environments, Sequence[str]]:
        """Finds the held-out tasks of a run, and this rank's environments for them: as many as in training."""
        slots = config.slots_of_rank(ranks.size)
        environments = Environments.of(config.environment, env_id, slots, config.evaluation.split)
        return environments, held_out_tasks(environments, config.evaluation.tasks) if config.evaluation.tasks else ()

    def sampled_and_greedy(self, display: Display, when: str) -> dict[str, Any]:
        config, results = self.config, {}
        for name, temperature, rollouts in (
            ("sampled", config.rollout.temperature, config.evaluation.rollouts),
            ("greedy", 0.0, 1),
        ):
            if self.tasks:
                what = f"{name} evaluation {when}"
                with display.episodes(what, self._own(rollouts)) as on_end:
                    lines = self._play(temperature, rollouts, on_end)
                # An agent may fail at everything that an untrained model says.
                result = self._result(lines, what, display.note, refuse=when == "after training")
                results[name] = dataclasses.asdict(dataclasses.replace(result, saturation=saturation(lines)))
        return results

    def during_training(self, progress: UpdateBars, update: int) -> dict[str, float]:
        """Returns the ``evaluation/…`` metrics of one sampled episode per task, after an update."""
        lines = self._play(self.config.rollout.temperature, 1, progress.batch_began(update, self._own(1)))
        result = self._result(lines, f"evaluation after update {update}", progress.note, refuse=False)
        return {"evaluation/mean_at_k": result.mean_at_k, "evaluation/reward_mean": result.reward_mean} | {
            f"evaluation/mean_at_k_of/{part.name}": part.mean_at_k
            for part in result.parts
            if part.kind == "environment"
        }

    def _result(
        self, lines: Sequence[dict[str, Any]], what: str, note: Callable[[str], None], *, refuse: bool
    ) -> EvalResult:
        if fault := check_faults([line for line in lines if line.get("fault")], len(lines), refuse=refuse):
            note(f"note: in the {what} {fault}")
        return summarise(lines, whole_split=self._whole_split)

    @functools.cached_property
    def _whole_split(self) -> bool:
        return len(self.tasks) >= len(held_out_tasks(self.environments, None))

    def _own(self, rollouts: int) -> int:
        return len(self.ranks.share(range(len(self.tasks) * rollouts)))

    def _play(self, temperature: float, rollouts: int, on_end: Callable[[Trajectory], None]) -> list[dict[str, Any]]:
        config = self.config
        played = play_policy(
            self.environments,
            self.sampler,
            self.policy.chat,
            self.ranks.share(evaluation_requests(self.tasks, rollouts, derive_seed(config.seed, "evaluation"))),
            dataclasses.replace(config.rollout, temperature=temperature),
            horizon=config.evaluation_horizon,
            on_end=on_end,
        )
        return self.ranks.gather([episode_line(t, {}) for t in played])
