"""Measures updates of a model of real shape, compiled as in the recipes: `adapters`, or under torchrun `all`.

It fails below half of the speed on paper, which is known for an H100 with 7B at 16,384 tokens an episode.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from gpus import H100_TFLOPS, QWEN_7B, QWEN_15B, large_model, model_flops, new_episodes, new_policy, on_h100, seconds_of

from harness.machine.ranks import join
from harness.model.lora import add_lora
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.update.optimizer import HostMoments, make_optimizer
from harness.update.update import update_policy

PAPER_MFU = {"adapters": 0.299, "all": 0.437}  # on one GPU; on eight
TOKENS = 16_384

trained = sys.argv[1]
ranks = join(device="cuda", timeout_s=300)
device = ranks.device("cuda")
fits = trained == "adapters" or ranks.size >= 4
shape = large_model() if fits else QWEN_15B
policy = new_policy(shape, device)
if trained == "adapters":
    add_lora(policy.model, 32, seed=0)
ranks.shard(policy, device)
policy.recompute(kept=len(policy.recomputed_layers))
steps = Optimizer(weight_decay=0.0, minibatches=2, tokens_per_microbatch=TOKENS)
optimizer = make_optimizer(policy.model, steps)
moments = HostMoments(optimizer)
episodes = new_episodes(2 * ranks.size, TOKENS, shape[0])


def update():
    moments.to_device()
    metrics = update_policy(policy, optimizer, episodes, Loss(), steps, temperature=1.0, seed=0, ranks=ranks)
    moments.to_host()
    assert 0 < metrics["train/grad_norm"] < 1e12


update()
eager = min(seconds_of(update) for _ in range(2))
policy.compile_layers()
update()
seconds = min(seconds_of(update) for _ in range(2))
mfu = model_flops(shape, episodes, adapters=trained == "adapters") / seconds / ranks.size / 1e12 / H100_TFLOPS
memory = torch.cuda.max_memory_allocated() / 1e9
if ranks.first:
    print(
        f"{len(episodes) * TOKENS / seconds:.0f} tokens/s on {ranks.size} GPUs, {memory:.1f} GB, {mfu:.1%} of an "
        "H100's peak"
    )
assert seconds < eager, f"compiled {seconds:.2f} s, eager {eager:.2f} s"
if on_h100() and shape == QWEN_7B and (trained == "adapters" or ranks.size == 8):
    assert mfu > PAPER_MFU[trained] / 2, mfu
ranks.close()
