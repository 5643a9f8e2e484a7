"""Models of real shape with random weights: kernels, speed and memory. Speeds are compared with an H100's on paper."""

import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_parameters import change_every_parameter, differing, held
from gpus import QWEN_15B, in_own_process, large_model, launch, new_episodes, new_policy, on_h100, seconds_of

from harness.model.head import float32_logits
from harness.model.lora import add_lora
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import SampleRequest, sample_all

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("a_gpu")]

# An engine's step on an H100, on paper: weights, keys and values are read at so many bytes a second, and 2.5 ms for the
# rest.
BANDWIDTH = 0.75 * 3.35e12


def packed_attention():
    shape = QWEN_15B
    episodes = new_episodes(4, 1024, shape[0])  # their prompt is long enough to be shared
    policy = new_policy(shape, "cuda", initializer_range=0.05)
    with torch.no_grad():
        packed = policy.score(policy.batch(episodes), 1.0)[0]
        policy.model.float().set_attn_implementation("sdpa")
        alone = torch.cat([policy.score(policy.batch([t]), 1.0)[0] for t in episodes])
    off = (packed - alone).abs()
    print(f"packed and alone differ by {off.mean():.4f}, at most {off.max():.4f} nats, of {alone.abs().mean():.2f}")
    assert alone.abs().mean() > 1
    assert off.mean() < 0.05


def new_shapes():
    """The widths of its cache are new to the first sampler, and not to the second."""
    policy = new_policy(QWEN_15B, "cuda")

    def step():
        sampler = TransformersSampler(policy.model, max_context=1024)
        for i in range(16):
            sampler.submit(SampleRequest(i, range(3, 300 + i), 24, seed=i))
        return statistics.median(seconds_of(sampler.step) for _ in range(24))

    first, again = step(), step()
    print(f"a step of 16 rows took {first * 1e3:.1f} ms with new shapes, {again * 1e3:.1f} ms with the same again")
    assert first < 1.5 * again


def engine(lora_rank):
    from harness.sampling.vllm.engine import VLLMSampler

    shape, context, at_once = large_model(), 2048, 64
    policy = new_policy(shape, "cuda")
    if lora_rank:
        add_lora(policy.model, lora_rank, seed=0)
    sampler = VLLMSampler(policy.model, max_context=context, slots=at_once)
    prompts = np.random.default_rng(0).integers(3, shape[0], (at_once, context // 4)).tolist()

    def sample():
        asked = [SampleRequest(i, prompt, context // 4, seed=i) for i, prompt in enumerate(prompts)]
        samples = sample_all(sampler, asked)
        for i in range(at_once):
            sampler.end_session(i)
        return samples

    def score(sampled):
        """The trainer's log-probabilities of the first row's tokens, and how far the engine's are off, in nats."""
        ids = [*prompts[0], *sampled.ids]
        with torch.no_grad(), float32_logits(policy.model):
            logits = policy.model(input_ids=torch.tensor([ids], device="cuda")).logits[0, len(prompts[0]) - 1 : -1]
        logp = logits.log_softmax(-1).gather(1, torch.tensor(sampled.ids, device="cuda")[:, None]).squeeze(1).cpu()
        return logp, (logp - torch.tensor(sampled.logprobs)).abs()

    first = sample()[0]  # the first steps make kernels
    old, off = score(first)
    lost, buffers = differing(sampler, policy.model), held(sampler)[1]
    print(
        f"at first: {len(lost)} parameters differ; log-probabilities by {off.mean():.4f}, at most {off.max():.4f} nats"
    )
    assert not lost
    seconds = seconds_of(sample)
    size = sum(p.nbytes for p in policy.model.parameters())
    _, width, _, layers, heads, kv_heads = shape
    read = at_once * 3 / 8 * context * 2 * layers * (width // heads * kv_heads) * 2
    step = (size + read) / BANDWIDTH + 2.5e-3
    print(f"{at_once * context // 4 / seconds:.0f} tokens/s, on an H100 on paper {at_once / step:.0f}")
    free = torch.cuda.mem_get_info()[0]
    sampler.sleep()
    torch.cuda.synchronize()
    freed = (torch.cuda.mem_get_info()[0] - free) / (0.5 * torch.cuda.get_device_properties(0).total_memory)
    change_every_parameter(policy.model)
    handed = seconds_of(sampler.weights_changed)
    print(f"sleep frees {freed:.1%} of the engine's half; handed over at {size / handed / 1e9:.1f} GB/s")
    lost, after = differing(sampler, policy.model), held(sampler)[1]
    changed = [name for name in buffers.keys() | after.keys() if not buffers[name].equal(after[name])]
    off, moved = score(sample()[0])[1], (score(first)[0] - old).abs()
    print(f"handed over: {len(lost)} parameters differ ({lost[:3]}), buffers {changed}")
    print(f"log-probabilities by {off.mean():.4f}, at most {off.max():.4f} nats; the change itself {moved.mean():.4f}")
    assert not lost
    assert not changed
    assert off.mean() < min(0.25, moved.mean() / 4)
    assert freed > 0.9
    assert size / handed > 2e9  # bytes a second
    if on_h100():
        assert at_once * context // 4 / seconds > at_once / step / 2


def test_packed_episodes_are_scored_as_each_alone_in_float32():
    in_own_process(packed_attention)


def test_a_step_of_the_sampler_takes_no_longer_with_new_shapes():
    in_own_process(new_shapes)


@pytest.mark.parametrize("lora_rank", [0, 32])
def test_an_engine_sleeps_and_takes_over_changed_weights(lora_rank):
    pytest.importorskip("vllm")
    in_own_process(engine, lora_rank)


@pytest.mark.parametrize("trained", ["adapters", "all"])
def test_a_compiled_update_has_half_of_the_speed_on_paper(trained):
    ranks = 1 if trained == "adapters" else min(torch.cuda.device_count(), 8)
    if trained == "all" and ranks < 2:
        pytest.skip("needs 2 GPUs")
    launch(ranks, str(Path(__file__).with_name("update_speed.py")), trained)
