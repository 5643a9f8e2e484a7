"""Who holds which weights: the policy that is trained, and what the sampler samples with."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from harness.policy.policy import Policy
from harness.policy.ranks import Ranks
from harness.sampling.vllm_server import VLLMServerSampler
from harness.types.sampler import Sampler

__all__ = ["SampledWeights"]


class SampledWeights:
    """The weights that the sampler samples with, and their hand-over from the policy after an update.

    In the simplest case the sampler reads the policy's own model. It needs a copy in two cases: if it samples while the policy is
    trained (`max_staleness`), and if the policy's weights are sharded over ranks and the sampler does not gather them itself.

    Args:
        policy: The policy that is trained, with all of its weights on this rank or on rank 0.
        max_staleness: How many updates ahead of its own a batch may begin. With 0 nothing is sampled while the policy is trained.
            With 1 the sampler takes the weights between two batches; with more it takes them as soon as they are there.
        ranks: The processes that train together.
        on_host: Whether a copy is in the host's memory, because the sampler has the weights on its own GPU too, as an engine or
            a server. Otherwise a copy is on the policy's device.
        gathers: Whether the sampler reads sharded weights, as an engine beside each rank does.

    Attributes:
        policy: The policy as the sampler sees it: its model is the copy, if there is one.
        updates: The number of policy updates that the sampler's weights have seen.
    """

    def __init__(
        self, policy: Policy, *, max_staleness: int, ranks: Ranks, on_host: bool = False, gathers: bool = False
    ) -> None:
        self._trained, self._ranks, self._max_staleness = policy, ranks, max_staleness
        self._copied = max_staleness > 0 or (ranks.sharded and not gathers)
        self.policy = policy
        if self._copied:
            model = _on_host(policy.model) if on_host else copy.deepcopy(policy.model)
            self.policy = dataclasses.replace(policy, model=model)
        self._dtype = policy.model.dtype  # before it is sharded in float32
        self.updates = 0
        self._sampler: Sampler | None = None

    @property
    def behind(self) -> PreTrainedModel | None:
        """The sampler's copy if its weights may differ from the policy's, so that a checkpoint has to keep them; else None."""
        return self.policy.model if self._max_staleness else None

    def fill(self, device: str) -> None:
        """Puts rank 0's weights on every rank's device, if a copy samples there. Does nothing for a run of one process."""
        if self._copied:
            self._ranks.fill(self.policy.model, device)

    def restore(self, updates: int) -> None:
        """Continues from a checkpoint, whose weights the policy has, and `behind` too if there is one."""
        self.updates = updates
        if self._copied and not self._max_staleness:
            self._ranks.copy_weights(self._trained.model, self.policy.model)

    def start(self, make_sampler: Callable[..., Sampler]) -> Sampler:
        """Makes the sampler, which takes over the present weights, and returns it once every rank has one.

        Args:
            make_sampler: Gets the policy, and as `version` the number of policy updates that its weights have seen.
        """
        self._sampler = make_sampler(self.policy, version=self.updates)
        self._ranks.wait()  # for servers that rank 0 sends the weights to
        return self._sampler

    def hand_over(self, updates: int) -> None:
        """Gives the sampler the policy's weights, unless it has them.

        Args:
            updates: The number of updates that the policy has seen.
        """
        assert self._sampler is not None, "start() comes first"
        if self.updates == updates:
            return
        if self._copied:
            self._ranks.copy_weights(self._trained.model, self.policy.model)
        self._sampler.weights_changed()
        self._ranks.wait()
        self.updates = updates

    def before_training(self, updates: int) -> None:
        """Prepares the sampler for a policy update: it takes the present weights, or gives its memory to the trainer.

        Args:
            updates: The number of updates that the policy has seen.
        """
        assert self._sampler is not None, "start() comes first"
        if not self._max_staleness:
            self._sampler.sleep()
        elif self._max_staleness == 1:
            self.hand_over(updates)

    def wake(self) -> None:
        """Ends the sleep of `before_training` if no training came after it."""
        assert self._sampler is not None, "start() comes first"
        self._sampler.wake()

    def after_training(self, updates: int) -> None:
        """Gives the sampler the new weights, unless it samples a batch that keeps its own to the end."""
        if self._max_staleness != 1:
            self.hand_over(updates)

    def save(self, folder: Path) -> None:
        """Writes what the sampler samples with as a Hugging Face folder. Every rank must call this."""
        self.policy.save(folder, dtype=self._dtype, write=self._ranks.first)

    def close(self) -> None:
        """Drops the requests that run on servers. Other samplers have nothing to close."""
        if isinstance(self._sampler, VLLMServerSampler):
            self._sampler.close()


@torch.no_grad()
def _on_host(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model in the host's memory, which is pinned if there is a GPU, so that copies to and from it are fast."""
    made: dict[int, Any] = {}
    for old in (*model.parameters(), *model.buffers()):
        if old.device.type != "meta":
            new = torch.empty_like(old, device="cpu", pin_memory=torch.cuda.is_available()).copy_(old)
            made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    return copy.deepcopy(model, made)
