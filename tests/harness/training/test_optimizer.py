"""Small steps are kept whatever the model computes in, and a checkpoint keeps them too."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from harness.policy.policy import Policy
from harness.training.checkpoint import load_training_state, training_state, write_training_state
from harness.training.optimizer import HostMoments, _zeros_on_host, make_optimizer, master_weights, parameters_of


def adamw(model: torch.nn.Module, rate: float = 1e-6) -> torch.optim.AdamW:
    return make_optimizer(model, learning_rate=rate, betas=(0.9, 0.999), weight_decay=0.0)


def line(dtype: torch.dtype) -> torch.nn.Linear:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    torch.nn.init.normal_(model.weight, std=0.02)
    return model.to(dtype)


def step(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    model(torch.ones(2, 64, dtype=model.weight.dtype)).sum().backward()
    optimizer.step()


def test_a_step_of_1e_6_moves_the_masters_and_at_last_the_model() -> None:
    model = line(torch.bfloat16)
    optimizer = adamw(model)
    weight, before = parameters_of(optimizer)[0], model.weight.detach().clone()
    assert weight.dtype == torch.float32
    step(model, optimizer)
    torch.testing.assert_close(before.float() - weight, torch.full_like(weight, 1e-6), rtol=0.01, atol=2e-9)
    after_one = (model.weight != before).float().mean()
    for _ in range(99):
        step(model, optimizer)
    # 1e-4 in all. A step of its own would change next to none of the bfloat16 weights: their grain at 0.02 is 1.2e-4.
    assert after_one < 0.05 < 0.5 < (model.weight != before).float().mean()
    assert torch.equal(model.weight, weight.to(torch.bfloat16))
    moved = (before.float() - weight).detach()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-4), rtol=0.01, atol=1e-7)


def test_a_float32_model_is_stepped_in_place_as_by_plain_adamw() -> None:
    ours, plain = line(torch.float32), line(torch.float32)
    optimizer = adamw(ours, 0.01)
    assert [id(p) for p in parameters_of(optimizer)] == [id(p) for p in ours.parameters()]
    assert master_weights(ours, optimizer) == []
    usual = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(3):
        step(ours, optimizer)
        step(plain, usual)
    assert torch.equal(ours.weight, plain.weight)


def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    model = line(torch.bfloat16)
    optimizer = adamw(model)
    for _ in range(1000):  # summed in bfloat16, 1 no longer counts from 256 on
        model.bias.sum().backward()
    assert model.bias.grad is None
    assert parameters_of(optimizer)[1].grad.tolist() == [1000.0] * 64  # type: ignore[union-attr]


def test_the_optimizer_made_last_has_the_gradients() -> None:
    model = line(torch.bfloat16)
    first, second = adamw(model), adamw(model)
    model.bias.sum().backward()
    assert parameters_of(first)[1].grad is None
    assert parameters_of(second)[1].grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_keeps_what_rounding_hides(trained: Policy, tmp_path: Path, dtype: torch.dtype) -> None:
    def fresh() -> tuple[Policy, torch.optim.AdamW]:
        policy = Policy(copy.deepcopy(trained.model).to(dtype), trained.tokenizer, trained.chat)
        return policy, adamw(policy.model)

    def train(policy: Policy, optimizer: torch.optim.AdamW) -> None:
        optimizer.zero_grad(set_to_none=True)
        policy.model(input_ids=torch.arange(5)[None]).logits.float().square().sum().backward()
        optimizer.step()

    policy, optimizer = fresh()
    train(policy, optimizer)
    write_training_state(
        tmp_path, training_state(model=policy.model, optimizer=optimizer), model=policy.model, extra={}
    )
    train(policy, optimizer)
    again, resumed = fresh()
    load_training_state(tmp_path, model=again.model, optimizer=resumed)
    train(again, resumed)
    for a, b in zip(parameters_of(optimizer), parameters_of(resumed), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each piece of pinned memory that torch makes, on a machine that seems to have a GPU."""
    made: list[int] = []
    zeros = torch.zeros

    def fake(*shape: int, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        if pin_memory:
            made.append(1 << (shape[0] - 1).bit_length())  # which torch rounds up
        return zeros(*shape, **how)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "zeros", fake)
    return made


def test_the_host_s_pages_are_pinned_once_and_device_and_host_share_nothing(pieces: list[int]) -> None:
    model = line(torch.float32)
    optimizer = adamw(model)
    moments = HostMoments(optimizer)
    state = optimizer.state[model.weight]
    host = state["exp_avg"]
    moments.to_device()
    assert state["exp_avg"].data_ptr() != host.data_ptr()
    step(model, optimizer)
    assert not host.any()
    moments.to_host()
    assert state["exp_avg"] is host
    assert host.any()
    assert sum(pieces) == 2 * sum(p.nbytes for p in model.parameters())


def test_moments_share_pinned_pieces_because_torch_rounds_each_up_to_a_power_of_two(pieces: list[int]) -> None:
    """A piece for each took up to twice the memory: 204 GB of a host in place of 118, for 14B on 8 ranks."""
    like = [torch.empty(23, 100 + n % 2, dtype=torch.float32) for n in range(40)]
    kept = list(_zeros_on_host(like))
    assert [(m.shape, m.dtype) for m in kept] == [(t.shape, t.dtype) for t in like]
    ends = [(m.data_ptr(), m.data_ptr() + m.nbytes) for m in kept]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(ends))), "no two share bytes"
    assert sum(pieces) < 1.1 * sum(m.nbytes for m in kept)
    assert next(iter(_zeros_on_host([torch.empty(0, 3)]))).shape == (0, 3)  # a rank's part of a small weight


def test_a_checkpoint_copies_sharded_moments_that_share_a_piece(pieces: list[int]) -> None:
    """It failed at each moment that does not begin its piece: "Attempted to call copy_() on an invalid python storage"."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        kept = [DTensor.from_local(m.fill_(n), mesh) for n, m in enumerate(_zeros_on_host([torch.empty(5, 3)] * 4))]
        copied: Any = DefaultStager(StagingOptions(False, False, False, False)).stage({"moments": kept})
        for tensor in kept:
            tensor.to_local().fill_(9)
        assert [float(tensor.to_local().max()) for tensor in copied["moments"]] == [0, 1, 2, 3]
        assert len(pieces) < 4
    finally:
        dist.destroy_process_group()
