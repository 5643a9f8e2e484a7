import torch

from harness.settings.optimizer import Optimizer
from harness.update.optimizer import make_optimizer, parameters_of


def adamw(model, rate=1e-6):
    return make_optimizer(model, Optimizer(learning_rate=rate, weight_decay=0.0))


def line(dtype):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    torch.nn.init.normal_(model.weight, std=0.02)
    return model.to(dtype)


def step(model, optimizer):
    optimizer.zero_grad(set_to_none=True)
    model(torch.ones(2, 64, dtype=model.weight.dtype)).sum().backward()
    optimizer.step()


def test_a_step_of_1e_6_moves_the_masters_and_at_last_the_model():
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


def test_a_float32_model_is_stepped_in_place_as_by_plain_adamw():
    ours, plain = line(torch.float32), line(torch.float32)
    optimizer = adamw(ours, 0.01)
    assert [id(p) for p in parameters_of(optimizer)] == [id(p) for p in ours.parameters()]
    usual = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(3):
        step(ours, optimizer)
        step(plain, usual)
    assert torch.equal(ours.weight, plain.weight)


def test_gradients_of_micro_batches_are_summed_in_float32():
    model = line(torch.bfloat16)
    optimizer = adamw(model)
    for _ in range(1000):  # summed in bfloat16, 1 no longer counts from 256 on
        model.bias.sum().backward()
    assert model.bias.grad is None
    assert parameters_of(optimizer)[1].grad.tolist() == [1000.0] * 64
