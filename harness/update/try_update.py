"""Tries an update of the largest micro-batch before the first rollout, so that a lack of memory shows at once."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from eh_gym.errors import ConfigError
from harness.machine.runtime import pick_dtype
from harness.settings.grpo import GRPOConfig
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory
from harness.update.learner import Learner

_SIZE = r"([\d.]+) ([GM])iB"
_SHORT = re.compile(rf"allocate {_SIZE}.*of which {_SIZE} is free", re.DOTALL)
_GIB = {"G": 1.0, "M": 1 / 1024}


def try_update(learner: Learner, config: GRPOConfig) -> str:
    """Carries out an update of the largest micro-batches that the settings allow. Every rank must call this.

    Weights, moments, the learning rate and the random state are the same afterwards, bit by bit. If the memory is too
    small, a ConfigError says by how much, and which flags save some.

    Returns:
        With ``recompute`` "fit", which activations are computed again, for the user; else "".
    """
    model, optimizer = learner.policy.model, learner.optimizer
    shape = model.config.get_text_config()
    longest = config.sampling.max_context or int(shape.max_position_embeddings)
    tokens = max(config.optimizer.tokens_per_microbatch, longest)
    episodes = largest_microbatches(tokens, longest, words=int(shape.vocab_size), ranks=learner.ranks.size)
    rates = [group["lr"] for group in optimizer.param_groups]
    once = dataclasses.replace(learner.optimization, minibatches=1, learning_rate=0.0)
    trial = functools.partial(dataclasses.replace(learner, optimization=once).update, episodes, 0)
    # Without gradients, the optimizer's step changes no weight and no moment.
    dropping = optimizer.register_step_pre_hook(lambda *_: optimizer.zero_grad())
    try:
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            memory = _Memory.of(trial, model.device)
            if config.optimizer.recompute != "fit" or not learner.policy.recomputed_layers:
                return ""
            half = pick_dtype(config.model.dtype, str(model.device)) != torch.float32
            return _fit(learner, trial, memory, half=half)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory is short for an update of {tokens:,} tokens in a micro-batch, the most that the "
            f"settings allow: {_missing(error)}; {what_to_lower(config, longest)}"
        ) from error
    finally:
        dropping.remove()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@dataclass(frozen=True)
class _Memory:
    """The bytes that an update takes on a GPU, and what it leaves free."""

    taken: int
    free: int
    total: int

    @classmethod
    def of(cls, update: Callable[[], object], device: torch.device) -> "_Memory":
        if device.type != "cuda":
            update()
            return cls(0, 0, 0)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        update()
        taken = torch.cuda.max_memory_allocated(device) - before
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free, total = torch.cuda.mem_get_info(device)
        return cls(taken, free + cached - taken, total)


def _fit(learner: Learner, trial: Callable[[], object], without: _Memory, *, half: bool) -> str:
    """Lets the layers keep the outputs of attention, which cost most for their size, then the first ones everything.

    An update in which one layer does so shows how many can. A tenth of the GPU stays free for gaps.
    """
    policy, ranks, device = learner.policy, learner.ranks, learner.policy.model.device

    def cost(**first: int) -> int:
        policy.recompute(**first)
        return max(1, *ranks.gather([_Memory.of(trial, device).taken - without.taken]))

    n, room = len(policy.recomputed_layers), max(0, min(ranks.gather([without.free - without.total // 10])))
    attention, layer = cost(kept=1) if half else 0, cost(stored=1)
    kept = min(n, room // attention) if half else 0
    stored = min(n, (room - kept * attention) // max(1, layer - attention)) if kept == n or not half else 0
    policy.recompute(kept=kept, stored=stored)
    trial()
    return f"the backward pass computes {n - stored} of {n} layers again, {max(kept - stored, 0)} without attention"


def largest_microbatches(tokens: int, longest: int, *, words: int, ranks: int) -> list[Trajectory]:
    """Makes episodes for two micro-batches of `tokens` on each rank. The second is computed beside the gradients of the
    first.

    `longest` are the most tokens of an episode, and `words` the size of the vocabulary, from which the ids are drawn.
    """
    parts = -(-tokens // longest)
    draws = np.random.default_rng(0)
    episodes = []
    for i in range(2 * ranks * parts):
        first, *written = draws.integers(words, size=tokens // parts).tolist()
        t = Trajectory("0", 0, reward=float(i % 2))
        t.add_prompt([first])
        t.add_sample(Sample(written, [-math.log(words)] * len(written), "stop", 0))
        episodes.append(t)
    return episodes


def what_to_lower(config: GRPOConfig, longest: int) -> str:
    """Names the flags that reduce the memory of an update. The first ones do not change its result."""
    now: list[str] = []
    if config.optimizer.tokens_per_microbatch > longest:
        now.append(f"--tokens-per-microbatch {longest}")
    if config.optimizer.recompute != "all":
        now.append("--recompute all")
    if config.max_staleness and config.sampling.memory_flag:  # otherwise the engine sleeps during the update
        now.append(f"a lower {config.sampling.memory_flag}")
    if config.max_staleness and config.sampling.runs_policy:
        now.append("fewer --slots")
    new = [f"a --max-context below {longest} with --tokens-per-microbatch as low"]
    if config.model.dtype == "float32":
        new.append("--dtype bfloat16")
    new.append("a lower --lora-rank" if config.optimizer.lora_rank else "--lora-rank 32")
    given = f"give {' or '.join(now)}; " if now else ""
    return f"{given}a new run may also have {', '.join(new)}, or more GPUs (torchrun --nproc-per-node 8)"


def _missing(error: torch.OutOfMemoryError) -> str:
    match = _SHORT.search(str(error))
    if match is None:
        return str(error)[:200]
    wanted, free = (float(match[i]) * _GIB[match[i + 1]] for i in (1, 3))
    return f"at least {wanted - free:.2f} GiB are missing, and what comes after may need more"
