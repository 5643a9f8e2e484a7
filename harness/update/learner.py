"""The learning part of a run: the policy, its optimizer and its reference, with the settings of the loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.machine.ranks import Ranks
from harness.machine.runtime import return_memory
from harness.model.policy import Policy
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory
from harness.update.optimizer import HostMoments
from harness.update.update import update_policy


@dataclass(frozen=True)
class Learner:
    """Carries out the policy updates of a run.

    The policy's model is trained in place, by an `optimizer` of its parameters or of copies of them. `reference` is the
    frozen policy of the KL term. The loss is about the distribution that was sampled, with this `temperature` > 0. The
    learning rate falls over all `updates` of the run. The `seed` draws which episodes share an optimizer step.
    `moments` keeps the optimizer's moments in the host's memory between updates.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    reference: Policy | None
    loss: Loss
    optimization: Optimizer
    temperature: float
    updates: int
    seed: int
    ranks: Ranks
    moments: HostMoments | None = None

    def update(self, trajectories: Sequence[Trajectory], update: int) -> dict[str, float]:
        learning_rate = self.optimization.learning_rate_at(update, self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.moments:
            self.moments.to_device()
        with self.ranks.together():
            metrics = update_policy(
                self.policy,
                self.optimizer,
                trajectories,
                self.loss,
                self.optimization,
                temperature=self.temperature,
                seed=derive_seed(self.seed, "minibatches", update),
                reference=self.reference,
                ranks=self.ranks,
            )
        if self.moments:
            self.moments.to_host()
        return_memory(self.policy.model.device)
        return metrics | {"train/lr": learning_rate}
