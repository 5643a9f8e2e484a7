"""The processes of a run: one, or with `torchrun -m harness.grpo …` several ("ranks") that train one policy together.

docs/multi-gpu.md, "How ranks share the work", has the table. Rank 0 alone loads the policy, into the memory of its
host. Without torchrun, the same code runs with `ALONE`, which does nothing.
"""

import copy
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
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

from eh_gym.errors import StateError
from eh_gym.processes import end_with
from harness.model.policy import Policy, score_batch
from harness.model.shards import whole

T = TypeVar("T")

# Messages of gloo and NCCL about a rank that died or did not answer in time.
_GONE = re.compile(r"\bclosed\b|reset by peer|refused|timed? ?out|NCCL|gloo", re.IGNORECASE)
_OWN = "unhandled cuda error"  # NCCL's message if this rank's own GPU failed, such as for lack of memory


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of the run.

    Attributes:
        rank: The number of this process, from 0.
        size: The number of processes.
        group: The torch.distributed group that sends Python objects over the CPU; None for a run without torchrun.
    """

    rank: int = 0
    size: int = 1
    group: Any = field(default=None, repr=False)

    @property
    def sharded(self) -> bool:
        """Whether the policy is sharded: with torchrun always, so that a run can resume with another `size`."""
        return self.group is not None

    @property
    def first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raises a clear error if a collective fails because another rank has stopped or does not answer."""
        try:
            yield
        except RuntimeError as error:  # gloo and NCCL raise it
            if not self.sharded or _OWN in str(error) or not _GONE.search(str(error)):
                raise
            raise StateError(
                f"another rank of this run has stopped or has not answered in time ({str(error).splitlines()[0]}); see "
                "its own message above, and start the run again with torchrun -m harness.grpo --resume RUN_DIR"
            ) from error

    def share(self, things: Sequence[T]) -> Sequence[T]:
        """This rank's part of a sequence. Parts are contiguous, and their lengths differ by at most one.

        >>> [Ranks(rank, 3).share("abcdefgh") for rank in range(3)]
        ['abc', 'de', 'fgh']
        """
        n = len(things)
        return things[round(n * self.rank / self.size) : round(n * (self.rank + 1) / self.size)]

    def gather(self, mine: Sequence[T]) -> list[T]:
        if self.group is None:
            return list(mine)
        parts: list[Any] = [None] * self.size
        with self.together():
            dist.all_gather_object(parts, list(mine), group=self.group)
        return [thing for part in parts for thing in part]

    def from_first(self, thing: T) -> T:
        if self.group is None:
            return thing
        box = [thing]
        with self.together():
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def wait(self) -> None:
        self.gather([])

    def device(self, name: str) -> str:
        """The device of this rank, for a kind of device such as "cuda". Makes a numbered GPU the present one."""
        device = torch.device(name)
        number = int(os.environ["LOCAL_RANK"]) if self.sharded else device.index
        if device.type != "cuda" or number is None:
            return name
        torch.cuda.set_device(number)
        return f"cuda:{number}"

    def hand_out(self, policy: Policy | None) -> Policy:
        """Gives every rank the policy of rank 0, on the others without weights (on the "meta" device)."""
        if self.group is not None:
            light = policy and dataclasses.replace(policy, model=_without_weights(policy.model))
            received = self.from_first(light)
            policy = policy or received
        assert policy is not None, "rank 0 has the policy"
        return policy

    @torch.no_grad()
    def fill(self, module: nn.Module, device: str, dtype: torch.dtype | None = None) -> None:
        """Copies rank 0's weights and buffers to every rank's `device`, one tensor at a time. Without torchrun it does
        nothing.

        Sharded tensors are skipped. `dtype` is the type of the weights; None keeps that of each weight.
        """
        if self.group is None:
            return
        made: dict[int, Tensor] = {}  # by the id of the replaced tensor, so that tied weights stay tied
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
                        with self.together():
                            dist.broadcast(new, src=0)
                        made[id(old)] = nn.Parameter(new, old.requires_grad) if trained else new
                    tensors[name] = made[id(old)]  # type: ignore[assignment]

    @torch.no_grad()
    def copy_weights(self, source: PreTrainedModel, target: PreTrainedModel) -> None:
        """Copies the weights of `source` into `target`, in place, one tensor at a time. Nothing may be sampling
        meanwhile.

        If `source` is sharded, every rank must call this, even if its `target` has no data.
        """
        with self.together():
            for new, old in zip(source.parameters(), target.parameters(), strict=True):
                # Narrowing before gathering halves the bytes.
                old.copy_(whole(new.to(old.dtype)), non_blocking=True)
        if source.device.type == "cuda":
            torch.cuda.synchronize(source.device)

    def shard(self, policy: Policy, device: str) -> None:
        """Shards rank 0's weights over the ranks, layer by layer, in float32. The model keeps computing in its own
        type.

        The optimizer then steps float32 shards, so a bfloat16 policy needs no other master weights. Besides its shards,
        a rank never holds more than one whole layer, or the embedding and the output layer.
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
        # FSDP gathers the weights of the embedding and the output layer for this method, as it does for `forward`.
        model.score_batch = MethodType(score_batch, model)  # type: ignore[assignment]
        register_fsdp_forward_method(model, "score_batch")

    def close(self) -> None:
        if self.group is not None:
            dist.destroy_process_group()


ALONE = Ranks()
"""The one process of a run without torchrun."""


def join(*, device: str, timeout_s: float) -> Ranks:
    """Joins the ranks that torchrun has started; without torchrun, returns `ALONE`.

    Args:
        device: "cpu" or "cuda".
        timeout_s: A rank that has waited this many seconds for another one stops the run.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    end_with(os.getppid())  # torchrun, even if it is killed
    timeout = timedelta(seconds=timeout_s)
    backend = "gloo" if torch.device(device).type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timeout)
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=timeout))


def _without_weights(model: PreTrainedModel) -> PreTrainedModel:
    light: dict[int, Any] = {id(b): torch.empty_like(b, device="meta") for b in model.buffers()}
    for p in model.parameters():
        light[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
    return copy.deepcopy(model, light)
