"""What a layer of Qwen2.5-7B's shape stores for the backward pass, and what that makes of an update: `python
benchmarks/activations.py`.

The bytes are counted on a CPU. The seconds are on paper, for an H100 of 80 GB, adapters and 2 x 16,384 tokens. They
begin with what was measured there (benchmarks/results/gpu-h100.txt): 3.75 s with 14 of 28 layers stored, .035 s for
each layer that is computed again, .74 s that compiling saves, 27.8 GB beside the stored layers, 1.223e15 operations.
One addmm in place of three passes over what the adapters add saves .1 s: 364 GB at 3.35 TB/s.
"""

import copy

import torch
from flags import new_parser, parse, print_heading, run
from torch.autograd.graph import saved_tensors_hooks
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.model.attention import choose_attention
from harness.model.batch import pack
from harness.model.lora import add_lora
from harness.model.policy import STORED_SHARE, Policy, score_batch
from harness.types.trajectory import Trajectory

LAYERS, TOKENS, ROOM_GB, BESIDE_GB = 28, 16_384, 0.9 * 80, 27.8
STORED_S, STORED_LAYERS, LAYER_S, COMPILED_S, OPERATIONS, PEAK = 3.75, 14, 0.035, 0.74, 1.223e15, 989e12
ADDMM_S = 0.1


def _model(layers: int, width: int, adapters: bool) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    heads = {"num_attention_heads": width // 128, "num_key_value_heads": width // 896}
    shape = {"hidden_size": width, "intermediate_size": width * 37 // 7, **heads}
    config = Qwen2Config(vocab_size=128, num_hidden_layers=layers, max_position_embeddings=4096, **shape)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    choose_attention(model, packing=True)
    if adapters:
        add_lora(model, 32, seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
    return model


def _stored(model: Qwen2ForCausalLM, tokens: int) -> tuple[int, list[torch.Tensor]]:
    """The bytes that the forward pass stores, without the weights, and the gradients."""
    episode = Trajectory("0", 0)
    episode.ids = torch.randint(0, 128, (tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    episode.action_mask, episode.logprobs = [0, *[1] * (tokens - 1)], [-1.0] * tokens
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logp, _ = score_batch(model, pack([episode], device=model.device), 1.0)
    size = sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in weights)
    return size, list(torch.autograd.grad(logp.sum(), [p for p in model.parameters() if p.requires_grad]))


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--width", type=int, default=3584)
    args = parse(parser, tokens=8, width=896)
    torch.set_num_threads(1)
    print_heading("torch", "transformers")
    print("| trained | parts | kB a token and layer | gradients as compiled | layers stored | s on paper | MFU |")
    for adapters in (True, False):
        models = [_model(layers, args.width, adapters) for layers in (1, 2)]
        reference: list[torch.Tensor] = []
        for share in (None,) if args.smoke else (None, 1.0, STORED_SHARE):
            torch._dynamo.reset()
            sizes = []
            for model in map(copy.deepcopy, models):
                if share is not None:
                    Policy(model, None, None).compile_layers(share)  # type: ignore[arg-type]
                    _stored(model, args.tokens)
                size, gradients = _stored(model, args.tokens)
                sizes.append(size)
            if share == 1.0:
                reference = gradients
            same = sum(map(torch.equal, gradients, reference)) if reference else 0
            layer = (sizes[1] - sizes[0]) / args.tokens
            fit = min(LAYERS, int((ROOM_GB - BESIDE_GB) / (layer * TOKENS / 1e9)))
            seconds = STORED_S - (fit - STORED_LAYERS) * LAYER_S - (COMPILED_S if share else 0)
            how = "eager" if share is None else f"compiled, share {share:g}"
            told = f"{same} of {len(gradients)}" if reference else ""
            row = f"| {'adapters' if adapters else 'all'} | {how} | {layer / 1000:.1f} | {told} | {fit} of {LAYERS} |"
            print(row, _paper(seconds) if adapters else "| |", flush=True)
        if adapters:
            print("| adapters | each in one addmm | | | |", _paper(seconds - ADDMM_S))


def _paper(seconds: float) -> str:
    return f"{seconds:.2f} | {OPERATIONS / seconds / PEAK:.1%} |"


if __name__ == "__main__":
    run(main)
