"""The weights that the sampler samples with, beside those of the policy that is trained."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from harness.machine.ranks import Ranks
from harness.model.policy import Policy
from harness.types.sampler import Sampler


class SampledWeights:
    """The weights that the sampler samples with, and their hand-over from the policy after an update.

    The sampler reads the policy's own model. It reads a copy if it samples `ahead`, or if the policy is sharded and the
    sampler does not gather the shards itself.

    Args:
        policy: The policy that is trained, with all of its weights on this rank or on rank 0.
        ahead: Whether the sampler samples while the policy is trained.
        on_host: Whether a copy is kept in the host's memory, because an engine or a server has the weights on its GPU
            already. Otherwise a copy is on the policy's device.
        gathers: Whether the sampler reads sharded weights, as an engine beside each rank does.

    Attributes:
        policy: The policy as the sampler sees it. Its model is the copy, if there is one.
    """

    _sampler: Sampler  # from `start`

    def __init__(
        self, policy: Policy, *, ahead: bool, ranks: Ranks, on_host: bool = False, gathers: bool = False
    ) -> None:
        self._trained, self._ranks, self._ahead = policy, ranks, ahead
        self._copied = ahead or (ranks.sharded and not gathers)
        self.policy = policy
        if self._copied:
            model = _on_host(policy.model) if on_host else copy.deepcopy(policy.model)
            self.policy = dataclasses.replace(policy, model=model)
        self._dtype = policy.model.dtype  # shards are float32

    def fill(self, device: str) -> None:
        """Puts rank 0's weights on every rank's device, if a copy samples there. Without torchrun it does nothing."""
        if self._copied:
            self._ranks.fill(self.policy.model, device)

    def copy(self) -> None:
        if self._copied:
            self._ranks.copy_weights(self._trained.model, self.policy.model)

    def start(self, make_sampler: Callable[..., Sampler], updates: int) -> Sampler:
        """Makes the sampler with the present weights. Returns it once every rank has one.

        `make_sampler` gets the policy, and as `version` the number of `updates` that its weights have seen.
        """
        self._sampler = make_sampler(self.policy, version=updates)
        self._ranks.wait()  # rank 0 may still send the weights to servers
        return self._sampler

    def before_training(self) -> None:
        if not self._ahead:
            self._sampler.sleep()

    def hand_over(self) -> None:
        self.copy()
        self._sampler.weights_changed()
        self._ranks.wait()

    def wake(self) -> None:
        self._sampler.wake()

    def save(self, folder: Path) -> None:
        """Writes the weights that are sampled with as a Hugging Face folder. Every rank must call this."""
        self.policy.save(folder, dtype=self._dtype, write=self._ranks.first)

    def close(self) -> None:
        self._sampler.close()


@torch.no_grad()
def _on_host(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model in the host's memory. It is pinned if there is a GPU, for fast transfers."""
    made: dict[int, Any] = {}
    for old in (*model.parameters(), *model.buffers()):
        if old.device.type != "meta":
            new = torch.empty_like(old, device="cpu", pin_memory=torch.cuda.is_available()).copy_(old)
            made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    return copy.deepcopy(model, made)
