"""The processes of a run: one, or with `torchrun -m harness.grpo …` several ("ranks") that train one policy together.

Everything about ranks is here. Each rank plays its share of the episodes, on servers or with a whole copy of the policy; then
every rank has all trajectories, so that controller, advantages and metrics come out the same everywhere without being sent. The
policy itself is sharded over the ranks (FSDP2), and only the update's forward and backward passes are split. Rank 0 alone loads
it, into its host's memory. A run of one process without torchrun goes through the same lines with `Ranks()`, which does nothing
and starts no torch.distributed. Left out: tensor and context parallelism.
"""

from __future__ import annotations

import copy
import dataclasses
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
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError, StateError
from harness.policy.policy import Policy, score_batch

__all__ = ["Ranks", "check_ranks", "join", "together", "whole"]

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

    def hand_out(self, policy: Policy | None) -> Policy:
        """The policy that rank 0 gives; on the other ranks its model is without weights, on the "meta" device."""
        if self.group is not None:
            light = policy and dataclasses.replace(policy, model=_without_weights(policy.model))
            received = self.from_first(light)
            policy = policy or received
        assert policy is not None, "rank 0 has the policy"
        return policy

    @torch.no_grad()
    def fill(self, module: nn.Module, device: str, dtype: torch.dtype | None = None) -> None:
        """Puts rank 0's weights and buffers on every rank's `device`, one tensor at a time; nothing without torchrun.

        Args:
            module: Of the same build on every rank; the others' tensors may be without data. What is sharded is left alone.
            device: Of this rank.
            dtype: Of the weights; None for the one that each has.
        """
        if self.group is None:
            return
        made: dict[int, Tensor] = {}  # by what they replace: tied weights stay tied
        for owner in module.modules():
            for tensors in (owner._parameters, owner._buffers):
                for name, old in tensors.items():
                    if old is None or isinstance(old, DTensor):
                        continue
                    if id(old) not in made:
                        trained = isinstance(old, nn.Parameter)
                        new = torch.empty(old.shape, device=device, dtype=(trained and dtype) or old.dtype)
                        if self.first:
                            new.copy_(old)
                        with together():
                            dist.broadcast(new, src=0)
                        made[id(old)] = nn.Parameter(new, old.requires_grad) if trained else new
                    tensors[name] = made[id(old)]  # type: ignore[assignment]

    @torch.no_grad()
    def copy_weights(self, source: PreTrainedModel, target: PreTrainedModel) -> None:
        """Gives `target` the weights of `source`, in place, one tensor at a time; no sampling may be on its way.

        Every rank must call it if `source` is sharded, even if its own `target` is without data.
        """
        with together():
            for new, old in zip(source.parameters(), target.parameters(), strict=True):
                old.copy_(whole(new))

    def shard(self, policy: Policy, device: str) -> None:
        """Spreads rank 0's weights over the ranks, layer by layer, in float32; the model computes in the type it had.

        The optimizer then steps float32 shards, so a bfloat16 policy needs no other master weights. A rank never holds more than
        its shards and one layer, or the embedding and output layer, whole.
        """
        if self.group is None:
            return
        model, dtype = policy.model, policy.model.dtype
        options: dict[str, Any] = {
            "mesh": init_device_mesh(torch.device(device).type, (self.size,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
            "reshard_after_forward": True,
        }
        for module in [*model.base_model.get_submodule("layers").children(), model]:
            self.fill(module, device, torch.float32)
            fully_shard(module, **options)
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


def _without_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy whose tensors have shapes and types alone."""
    light: dict[int, Any] = {id(b): torch.empty_like(b, device="meta") for b in model.buffers()}
    for p in model.parameters():
        light[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
    return copy.deepcopy(model, light)


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


def check_ranks(ranks: Ranks, *, sampler: str) -> None:
    """Raises ConfigError for what several ranks can't do."""
    if ranks.sharded and sampler == "vllm":
        raise ConfigError(
            "--sampler vllm is for a run without torchrun; with it, start vLLM servers and give "
            "--sampler vllm-server --url, or use --sampler transformers"
        )
