"""AdamW over float32 weights, whatever type the model computes with.

At a learning rate of 1e-6 a step moves a weight by about 1e-6, and bfloat16 has 8 bits: to a weight of 0.02 it adds nothing
below 6e-5. So the optimizer works on float32 copies of the weights ("master weights", arXiv 1710.03740), sums the gradients
of all micro-batches in float32, and writes the rounded weights back into the model after each step. The model itself is
bfloat16 throughout, so that what samples with it, or with a copy of it, computes as the trainer does. A model in float32 has no
copies. Left out: optimizers that store less (8 bits, factored).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["make_optimizer", "master_weights", "parameters_of"]


# Who takes a narrow parameter's gradients: the optimizer made last.
_takers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def make_optimizer(
    model: nn.Module, *, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over the model's trainable parameters.

    The copies are taken now: weights that the model is given otherwise than by this optimizer come before it.

    Args:
        model: Its gradients go to the optimizer's own parameters where the model's are narrower than float32; its own `grad`
            are then None after a backward pass.
        learning_rate: Of the first step.
        betas: AdamW's.
        weight_decay: AdamW's.
    """
    pairs = [(p, _master(p)) for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [master for _, master in pairs], lr=learning_rate, betas=betas, weight_decay=weight_decay
    )
    copied = [(p, master) for p, master in pairs if p is not master]

    @torch.no_grad()
    def write_back(*_: Any) -> None:
        for parameter, master in copied:
            parameter.copy_(master)

    if copied:
        optimizer.register_step_post_hook(write_back)
    return optimizer


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What the optimizer steps, with the gradients summed so far."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def master_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The optimizer's own copies, in order; empty for a model in float32. A checkpoint needs them: the model's are rounded."""
    own = {id(p) for p in model.parameters()}
    return [p.detach() for p in parameters_of(optimizer) if id(p) not in own]


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter itself where it is wide enough, else a float32 copy that takes over its gradients as they come."""
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
