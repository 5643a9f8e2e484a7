"""What a layer of Qwen2.5-7B's shape stores for the backward pass, and what that makes of an update: `python
benchmarks/activations.py`.

The bytes are counted on a CPU. The seconds are on paper, for an H100 of 80 GB, adapters and 2 x 16,384 tokens. They
begin with what was measured there (benchmarks/results/gpu-h100.txt): 3.75 s with 14 of 28 layers stored, .035 s for
each layer that is computed again, .74 s that compiling saves, 27.8 GB beside the stored layers, 1.223e15 operations.
One addmm in place of three passes over what the adapters add saves .1 s: 364 GB at 3.35 TB/s.
"""

import torch
from flags import new_parser, parse, print_heading, run
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from harness.model.attention import choose_attention
from harness.model.batch import pack
from harness.model.fresh import fresh_qwen2
from harness.model.lora import add_lora
from harness.model.policy import STORED_SHARE, Policy, score_batch
from harness.types.trajectory import TokenSequence


def stored(layers: int, width: int, tokens: int, trained: str, share: float) -> tuple[int, tuple[Tensor, ...]]:
    """Returns the bytes that a forward pass stores, without the weights, and the gradients."""
    shape = (128, width, width * 37 // 7, layers, width // 128, width // 896)
    model = fresh_qwen2(*shape, positions=4096, eos_id=0, tied=False, dtype=torch.bfloat16)
    choose_attention(model)
    if trained == "adapters":
        add_lora(model, 32, seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zeros at first
                torch.nn.init.constant_(parameter, 0.02)
    if share:
        Policy(model, None, None).compile_layers(share)  # type: ignore[arg-type]
    batch = pack([TokenSequence(0, [7 * i % 128 for i in range(tokens)], [0, *[1] * (tokens - 1)], [-1.0] * tokens)])
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for _ in range(2):  # the first pass compiles
        sizes.clear()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            logp, _ = score_batch(model, batch, 1.0)
        gradients = torch.autograd.grad(logp.sum(), [p for p in model.parameters() if p.requires_grad])
    for parameter in model.parameters():
        sizes.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(sizes.values()), gradients


def main() -> None:
    """Prints the table."""
    args = parse(new_parser(__doc__))
    width, tokens = (896, 8) if args.smoke else (3584, 96)
    print_heading("torch", "transformers")
    print("| trained | parts | kB a token and layer | gradients as compiled | layers stored | s on paper | MFU |")
    for trained in ("adapters", "all"):
        for share in (0.0,) if args.smoke else (0.0, 1.0, STORED_SHARE):
            torch._dynamo.reset()
            (one, _), (two, gradients) = (stored(layers, width, tokens, trained, share) for layers in (1, 2))
            if share == 1:
                expected = gradients
            same = f"{sum(map(torch.equal, gradients, expected))} of {len(gradients)}" if share else ""
            layer = (two - one) / tokens
            fit = int((0.9 * 80 - 27.8) / (layer * 16_384 / 1e9))
            seconds = 3.75 - (fit - 14) * 0.035 - (0.74 if share else 0)
            parts = f"compiled, share {share:g}" if share else "eager"
            print(f"| {trained} | {parts} | {layer / 1000:.1f} | {same} | {fit} of 28 |", end=" ")
            print(paper(seconds) if trained == "adapters" else "| |", flush=True)
        if trained == "adapters":
            print("| adapters | each in one addmm | | | |", paper(seconds - 0.1))


def paper(seconds: float) -> str:
    """Returns an update's seconds and their MFU."""
    return f"{seconds:.2f} | {1.223e15 / seconds / 989e12:.1%} |"


if __name__ == "__main__":
    run(main)
