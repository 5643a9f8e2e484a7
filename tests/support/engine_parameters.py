"""What a vLLM engine of this process holds, beside the policy's own weights, bit by bit."""

import torch

from harness.model.lora import plain_parameters


def held(sampler):
    """The engine's parameters, its buffers, and the matrices that each of its fused ones is made of."""

    def read(model):
        copies = [
            {name: value.detach().cpu().clone() for name, value in values}
            for values in (model.named_parameters(), model.named_buffers())
        ]
        return *copies, dict(getattr(model, "packed_modules_mapping", {}))

    return sampler._engine.apply_model(read)[0]


def differing(sampler, model):
    """The names of the engine's parameters that are not the policy's, and of the policy's that it lacks."""
    parameters, _, fused = held(sampler)
    policy = {name: value.cpu() for name, value in plain_parameters(model, sampler._dtype)}
    expected = {}
    for name in policy:
        for whole, parts in fused.items():
            at = next((part for part in parts if f".{part}." in name), None)
            if at:
                names = [name.replace(f".{at}.", f".{part}.") for part in parts]
                expected[name.replace(f".{at}.", f".{whole}.")] = torch.cat([policy[one] for one in names])
                break
        else:
            expected[name] = policy[name]
    names = parameters.keys() | expected.keys()
    return sorted(n for n in names if n not in parameters or n not in expected or not parameters[n].equal(expected[n]))
