"""What a vLLM engine of this process holds, beside the policy's own weights, bit by bit."""

import torch

from harness.model.lora import plain_parameters


def held(sampler):
    """The engine's parameters, its buffers, and the matrices that each of its fused ones is made of.

    On a CPU, vLLM packs a matrix for its kernel and keeps nothing else. Then the matrix is what the layer makes of the
    identity.
    """

    @torch.no_grad()
    def read(model):
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        for name, layer in model.named_modules():
            if parameters.get(f"{name}.weight", torch.ones(1)).numel() == 0:
                identity = torch.eye(layer.input_size, dtype=layer.weight.dtype, device=layer.weight.device)
                parameters[f"{name}.weight"] = layer.quant_method.apply(layer, identity, None).T
        parameters, buffers = (
            {name: value.cpu().clone() for name, value in values.items()}
            for values in (parameters, dict(model.named_buffers()))
        )
        return parameters, buffers, dict(getattr(model, "packed_modules_mapping", {}))

    return sampler._engine.apply_model(read)[0]


def differing(sampler, model):
    """The names of the engine's parameters that are not the policy's, and of the policy's that it lacks."""
    engine, _, fused = held(sampler)
    policy = {name: value.cpu() for name, value in plain_parameters(model, sampler._dtype)}
    expected = {}
    for name in policy:
        found = [(whole, parts, part) for whole, parts in fused.items() for part in parts if f".{part}." in name]
        if not found:
            expected[name] = policy[name]
        for whole, parts, part in found:
            together = [policy[name.replace(f".{part}.", f".{other}.")] for other in parts]
            expected[name.replace(f".{part}.", f".{whole}.")] = torch.cat(together)
    # A vocabulary is padded by rows that no token has.
    equal = {
        name for name in engine.keys() & expected.keys() if engine[name][: len(expected[name])].equal(expected[name])
    }
    return sorted((engine.keys() | expected.keys()) - equal)


@torch.no_grad()
def change_every_parameter(model, *, seed=0):
    """Multiplies each by a factor of its own, 1.1 to 1.3, and adds noise to what is 0, such as biases and adapters."""
    draws = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if not parameter.any():
            parameter += 0.02 * torch.randn(parameter.shape, generator=draws).to(parameter)
        parameter *= 1.1 + 0.2 * float(torch.rand((), generator=draws))
