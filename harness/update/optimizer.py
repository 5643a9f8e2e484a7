"""AdamW over float32 weights, whatever type the model computes with; docs/training.md says why.

The optimizer works on float32 copies of the weights ("master weights", arXiv 1710.03740), sums the gradients of all
micro-batches in float32, and writes the rounded weights back into the model after each step. The model itself stays in
bfloat16, so a sampler that uses it or a copy of it computes as the trainer does.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from harness.settings.optimizer import Optimizer

# For each parameter narrower than float32, the hook that passes its gradients to the optimizer that was made last.
_takers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def make_optimizer(model: nn.Module, settings: Optimizer) -> torch.optim.AdamW:
    """Makes AdamW over the model's trainable parameters.

    The float32 copies are taken now, so load any weights into the model before you make the optimizer. Its moments are
    made, too.

    Args:
        model: The model to train. The gradients of a parameter narrower than float32 go to its float32 copy; the `grad`
            of such a parameter is None after a backward pass.
        settings: AdamW's learning rate, its second beta and its weight decay.
    """
    pairs = [(p, _master(p)) for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [master for _, master in pairs],
        lr=settings.learning_rate,
        betas=(0.9, settings.adam_beta2),
        weight_decay=settings.weight_decay,
        foreach=False,  # all weights at once need 4 more bytes each, to speed up a small part of an update
    )
    # As AdamW's first step would, so that checkpoints have them and their memory is known from the start.
    for _, master in pairs:
        optimizer.state[master] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }
    copied = [(p, master) for p, master in pairs if p is not master]

    @torch.no_grad()
    def write_back(*_: Any) -> None:
        for parameter, master in copied:
            parameter.copy_(master)

    if copied:
        optimizer.register_step_post_hook(write_back)
    return optimizer


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class HostMoments:
    """Keeps AdamW's moments in the host's memory while episodes are played, so that an engine's cache can have their
    place.

    The moments are in the host's memory from now on; `to_device` brings them back for an update. A checkpoint may be
    taken in either place. Load one into the optimizer before you make this object.

    Args:
        optimizer: From `make_optimizer`, over tensors or over this rank's shards.
    """

    def __init__(self, optimizer: torch.optim.AdamW) -> None:
        self._optimizer = optimizer
        moments = [(p, name) for p in parameters_of(optimizer) for name in ("exp_avg", "exp_avg_sq")]
        sizes = [_local(p).numel() for p, _ in moments]
        # One piece, because torch rounds pinned sizes up to powers of two. Pinned memory is copied several times as
        # fast.
        host = torch.empty(sum(sizes), pin_memory=torch.cuda.is_available())
        self._host = dict(zip(moments, host.split(sizes), strict=True))
        self.to_host()

    @torch.no_grad()
    def to_host(self) -> None:
        for (p, name), flat in self._host.items():
            state = self._optimizer.state[p]
            host = flat.view(_local(p).shape)
            host.copy_(_local(state[name]), non_blocking=True)
            state[name] = DTensor(host, p._spec, requires_grad=False) if isinstance(p, DTensor) else host
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a checkpoint may read them now

    @torch.no_grad()
    def to_device(self) -> None:
        for (p, name), flat in self._host.items():
            moment = torch.empty_like(p)
            _local(moment).copy_(flat.view(_local(p).shape), non_blocking=True)
            self._optimizer.state[p][name] = moment


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter itself if it has at least 32 bits; else a float32 copy that takes over its gradients."""
    if torch.finfo(parameter.dtype).bits >= 32:
        return parameter
    master = nn.Parameter(parameter.detach().float())

    def take(narrow: Tensor) -> None:
        assert narrow.grad is not None
        if master.grad is None:
            master.grad = narrow.grad.float()
        else:
            master.grad += narrow.grad
        narrow.grad = None

    earlier: RemovableHandle | None = _takers.get(parameter)
    if earlier is not None:
        earlier.remove()
    _takers[parameter] = parameter.register_post_accumulate_grad_hook(take)
    return master
