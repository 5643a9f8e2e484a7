"""The processes of a run: one, or with `torchrun -m harness.grpo …` several ("ranks") that train one policy together.

Everything about ranks is here. Each rank plays its share of the episodes with a whole copy of the policy; then every rank has all
trajectories, so that controller, advantages and metrics come out the same everywhere without being sent. The policy itself is
sharded over the ranks (FSDP2), and only the update's forward and backward passes are split. A run of one process without torchrun
goes through the same lines with `Ranks()`, which does nothing and starts no torch.distributed. Left out: tensor and context
parallelism, LoRA on several ranks, and loading a model that does not fit on one rank whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import MethodType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError, StateError
from harness.policy import Policy, score_batch

__all__ = ["Ranks", "check_ranks", "copy_weights", "join", "together", "whole"]

T = TypeVar("T")

# What gloo and NCCL say of a rank that has died, or that the others have waited for too long.
_GONE = re.compile(r"clos|reset by peer|refused|timed? ?out|NCCL|gloo", re.IGNORECASE)


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run.

    Attributes:
        rank: Its number, from 0.
        size: How many there are.
        group: For Python objects, over the CPU; None for a run without torchrun.
    """

    rank: int = 0
    size: int = 1
    group: Any = field(default=None, repr=False)

    @property
    def sharded(self) -> bool:
        """Whether the policy is sharded: under torchrun, also with one rank, so that a run can go on with another number."""
        return self.group is not None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes logs and talks."""
        return self.rank == 0

    def share(self, things: Sequence[T]) -> Sequence[T]:
        """This rank's part, contiguous and as long as any other's within one.

        >>> [Ranks(rank, 3).share("abcdefgh") for rank in range(3)]
        ['abc', 'de', 'fgh']
        """
        n = len(things)
        return things[round(n * self.rank / self.size) : round(n * (self.rank + 1) / self.size)]

    def gather(self, mine: Sequence[T]) -> list[T]:
        """Every rank's things, in the order of ranks, on every rank."""
        if self.group is None:
            return list(mine)
        found: list[Any] = [None] * self.size
        with together():
            dist.all_gather_object(found, list(mine), group=self.group)
        return [thing for part in found for thing in part]

    def from_first(self, thing: T) -> T:
        """Rank 0's, on every rank."""
        if self.group is None:
            return thing
        box = [thing]
        with together():
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def sums(self, mine: Mapping[str, float]) -> dict[str, float]:
        """The sum over ranks of each number, added in the order of ranks: the same to the last bit everywhere."""
        every = self.gather([mine])
        return {name: sum(numbers[name] for numbers in every) for name in mine}

    def wait(self) -> None:
        """Until every rank is here."""
        self.gather([])

    def device(self, name: str) -> str:
        """The device of this rank, where `name` is a kind of device."""
        if self.sharded and torch.device(name).type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            return f"cuda:{os.environ['LOCAL_RANK']}"
        return name

    @torch.no_grad()
    def equalise(self, model: PreTrainedModel) -> None:
        """Gives every rank the weights that rank 0 has."""
        if self.group is None:
            return
        with together():
            for parameter in model.parameters():
                dist.broadcast(parameter.detach(), src=0)

    def shard(self, policy: Policy) -> None:
        """Spreads the policy's weights over the ranks, layer by layer, in float32; it computes in the type it had.

        The optimizer then steps float32 shards, so a bfloat16 policy needs no other master weights.
        """
        if self.group is None:
            return
        model, dtype = policy.model, policy.model.dtype
        torch.nn.Module.to(model, torch.float32)
        options: dict[str, Any] = {
            "mesh": init_device_mesh(model.device.type, (self.size,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        }
        for layer in model.base_model.get_submodule("layers").children():
            fully_shard(layer, **options)
        fully_shard(model, **options)
        # FSDP gathers the weights of embedding and output layer around this method, as it does around `forward`.
        model.score_batch = MethodType(score_batch, model)  # type: ignore[assignment]
        register_fsdp_forward_method(model, "score_batch")

    def close(self) -> None:
        """Ends the group of ranks."""
        if self.group is not None:
            dist.destroy_process_group()


def join(*, device: str, timeout_s: float) -> Ranks:
    """The ranks that torchrun has started, or the one process there is.

    Args:
        device: "cpu" or "cuda".
        timeout_s: A rank that has waited so long for another stops the run.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Ranks()
    timeout = timedelta(seconds=timeout_s)
    backend = "gloo" if torch.device(device).type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timeout)
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=timeout))


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all of one that is sharded; then every rank must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Gives `target` the weights of `source`, in place, one tensor at a time; no sampling may be on its way."""
    with together():
        for new, old in zip(source.parameters(), target.parameters(), strict=True):
            old.copy_(whole(new))


@contextmanager
def together() -> Iterator[None]:
    """Says what it means when, in a collective, the others are gone."""
    try:
        yield
    except RuntimeError as error:  # gloo's and NCCL's
        if not dist.is_initialized() or not _GONE.search(str(error)):
            raise
        raise StateError(
            f"another rank of this run has stopped or has not answered in time ({str(error).splitlines()[0]}); see its own "
            "message above, and start the run again with torchrun -m harness.grpo --resume RUN_DIR"
        ) from error


def check_ranks(ranks: Ranks, *, sampler: str, lora_rank: int) -> None:
    """Raises ConfigError for what several ranks can't do."""
    if not ranks.sharded:
        return
    if sampler == "vllm":
        raise ConfigError(
            "--sampler vllm is for a run without torchrun; with it, start vLLM servers and give "
            "--sampler vllm-server --url, or use --sampler transformers"
        )
    if lora_rank:
        raise ConfigError("--lora-rank is for a run without torchrun; drop it, or start without torchrun")
