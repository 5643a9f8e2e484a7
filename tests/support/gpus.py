"""What the tests of tests/gpu share: whether there is a GPU, models of real shape, episodes, short runs."""

import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from harness.model.attention import PACKED
from harness.model.fresh import fresh_qwen2
from harness.model.policy import Policy
from harness.records.metrics import read_metrics
from harness.types.trajectory import Trajectory

# The vocabulary, width, feed-forward width, layers, heads, and heads of the keys and values.
TINY = (512, 64, 128, 2, 2, 1)
QWEN_15B = (151_936, 1536, 8960, 28, 12, 2)
QWEN_7B = (152_064, 3584, 18_944, 28, 28, 4)
H100_TFLOPS = 989  # of an H100 (SXM) or H200 in bfloat16, dense, from NVIDIA's data sheets
_SETTINGS = (
    "--updates 2 --tasks-per-update 4 --group-size 4 --minibatches 1 --eval-tasks 2 --kl-coef 0.01 --learning-rate "
    "0.003 --warmup-updates 0 --dtype bfloat16"
)


def need_gpu():
    """Skips without a GPU. One that torch can't use is a failure: a run would go on on the CPU, and seem right."""
    if torch.cuda.is_available():
        return
    present = any(Path("/dev").glob("nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None
    if present and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        pytest.fail("torch can't use this machine's GPU: compare nvidia-smi's CUDA version with torch.version.cuda")
    pytest.skip("there is no GPU")


def in_own_process(work, *arguments, timeout_s=600):
    """Carries out a part of a test in a new process, so that its engine and its memory end with it."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join(timeout_s)
    late = process.is_alive()
    process.kill()
    process.join()
    assert not late, f"it did not end within {timeout_s:g} s"
    assert process.exitcode == 0, "it failed; its traceback is in the captured output"


def launch(ranks, *words):
    """Runs a module or a script, on several ranks if there are more than one."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    subprocess.run([sys.executable, *several, *words], check=True, timeout=600)


def train(folder, *words, ranks=1, device="cuda"):
    place = () if "--resume" in words else ("--out", str(folder))
    launch(ranks, "-m", "harness.grpo", *_SETTINGS.split(), "--device", device, *words, *place)
    return read_metrics(folder / "metrics.jsonl")


def assert_sound(rows, *, lag=0, most=0.02):
    """A run's two updates compare the sampler's log-probabilities with the trainer's, in nats.

    The KL term keeps every episode in the loss, and the learning rate moves the log-probabilities by far more than the
    bound. So a hand-over that lost the weights is seen in the second update.
    """
    assert len(rows) == 2
    first, second = (math.inf if x is None else x for x in (row["train/logp_difference_mean"] for row in rows))
    assert first <= most
    assert lag or second <= most  # some tokens that were sampled before the update may be from the weights after it
    assert 0 < rows[-1]["rollout/policy_lag"] <= lag if lag else rows[-1]["rollout/policy_lag"] == 0
    for what in ("rollout/environment_errors", "train/skipped_steps"):
        assert sum(row.get(what, 0) for row in rows) == 0, what


def large_model():
    return QWEN_7B if torch.cuda.get_device_properties(0).total_memory >= 70e9 else QWEN_15B


def on_h100():
    return any(name in torch.cuda.get_device_name() for name in ("H100 80GB", "H200"))


def new_policy(shape, device, *, initializer_range=0.02):
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    how = {"dtype": dtype, "initializer_range": initializer_range, "tied": shape != QWEN_7B, "positions": 32_768}
    model = fresh_qwen2(*shape, eos_id=2, device=device, **how)
    model.set_attn_implementation(PACKED)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape[0])}, unk_token="w0"))
    nothing = None
    return Policy(model, PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w0"), nothing)


def new_episodes(count, length, words):
    """One group: an eighth of each episode is the prompt; then 84 tokens are written for each 35 that are read, as in
    BFCL."""
    prompt = np.random.default_rng(0).integers(3, words, length // 8).tolist()
    found = []
    for i in range(count):
        t = Trajectory("0", 0, reward=float(i % 2))
        t.add_prompt(prompt)
        rest = length - len(prompt)
        t.ids += np.random.default_rng(1 + i).integers(3, words, rest).tolist()
        t.action_mask += [int(j % 119 < 84) for j in range(rest)]
        t.logprobs += [-float(np.log(words)) * written for written in t.action_mask[len(prompt) :]]
        found.append(t)
    return found


def model_flops(shape, episodes, *, adapters):
    """The model FLOPs of an update: of a token at position p 6 P + 12 L A p, and 6 V H if it is written.

    P is the number of the layers' parameters. Frozen ones cost 4 P and 4 V H. Repeated computation does not count.
    """
    each = 4.0 if adapters else 6.0
    vocab, width, ffn, layers, heads, kv_heads = shape
    keys = width // heads * kv_heads
    each_layer = 2 * width**2 + 2 * width * keys + 3 * width * ffn + width + 2 * keys + 2 * width
    total = 0.0
    for t in episodes:
        n = len(t.ids)
        total += each * (layers * each_layer + width) * n + 12.0 * layers * width * (n * (n - 1) / 2)
        total += each * vocab * width * t.action_tokens
    return total


def seconds_of(work):
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
