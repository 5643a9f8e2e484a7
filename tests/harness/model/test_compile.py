import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import AttentionInterface

from eh_gym.errors import ConfigError
from harness.machine.runtime import compiles
from harness.model.attention import PACKED, packed_attention
from harness.model.policy import STORED_SHARE
from harness.settings.grpo import from_recipe
from harness.settings.section import changed
from harness.types.trajectory import Trajectory


@pytest.fixture(autouse=True)
def _as_before():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(disable=False):  # an engine on the CPU turns it off for its process
        yield
    torch._dynamo.reset()
    AttentionInterface.register(PACKED, packed_attention)


def episodes(count, length):
    found = []
    for i in range(count):
        t = Trajectory("0", 0)
        t.add_prompt([3] * 40)
        t.ids += torch.randint(4, 20, (length,), generator=torch.Generator().manual_seed(i)).tolist()
        t.action_mask += [1] * length
        t.logprobs += [-1.0] * length
        found.append(t)
    return found


def scored(policy, group):
    logp, _ = policy.score(policy.batch(group), 1.0)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    return [logp.detach(), *torch.autograd.grad(logp.sum(), trained)]


def test_the_layers_are_traced_once_and_compute_the_same(trained, monkeypatch):
    traced = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module, **how: traced(module, backend="eager", **how))
    policy = dataclasses.replace(trained, model=copy.deepcopy(trained.model))
    policy.model.train()
    policy.recompute(kept=2)
    groups = [episodes(2, 30), episodes(3, 50), episodes(1, 17)]
    expected = [scored(policy, group) for group in groups]
    policy.compile_layers()
    made = []
    for group, right in zip(groups, expected, strict=True):
        for a, b in zip(scored(policy, group), right, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        made.append(counters["stats"]["unique_graphs"])
    assert made[0] > 0
    assert made == [made[0]] * 3, "another number of tokens was compiled anew"


@pytest.mark.campaign  # a C++ compiler's minute
def test_what_is_not_stored_changes_no_gradient(trained):
    found = []
    for share in (1.0, STORED_SHARE):
        torch._dynamo.reset()
        policy = dataclasses.replace(trained, model=copy.deepcopy(trained.model))
        policy.compile_layers(share)
        gradients, sizes = scored(policy, episodes(2, 30)), {}

        def keep(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy.score(policy.batch(episodes(2, 30)), 1.0)
        found.append((gradients, sum(sizes.values())))
    (all_gradients, all_bytes), (gradients, stored) = found
    assert stored < 0.95 * all_bytes
    assert all(map(torch.equal, gradients, all_gradients))


def test_auto_compiles_on_gpus_alone_and_never_the_sampler_s_model(monkeypatch):
    monkeypatch.setattr("harness.machine.runtime.find_spec", lambda name: name)
    monkeypatch.setattr("harness.machine.runtime.shutil.which", lambda name: name)
    found = [compiles("auto", device, sampled=sampled) for device in ("cpu", "cuda:1") for sampled in (True, False)]
    assert found == [False, False, False, True]
    monkeypatch.setattr("harness.machine.runtime.shutil.which", lambda name: None)  # Triton needs a C compiler
    assert not compiles("auto", "cuda", sampled=False)
    assert [compiles(how, "cpu", sampled=False) for how in ("on", "off")] == [True, False]
    with pytest.raises(ConfigError, match=r"--compile.*--sampler vllm"):
        changed(from_recipe("quickstart"), compile="on")
