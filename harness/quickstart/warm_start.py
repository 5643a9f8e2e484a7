"""Behaviour cloning from the environment's own expert, so that GRPO starts with successes to learn from.

Without it, a model with random weights never succeeds: the rewards in every group are equal, and every advantage is 0. The warm
start stops at a loss target and not after a number of steps, because the loss falls in a phase transition whose time varies with
the seed. A pretrained model needs no warm start.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

from harness.policy.batch import padded_microbatches
from harness.policy.policy import Policy
from harness.quickstart.expert import demonstrate
from harness.run.files import whole_folder
from harness.settings.warm_start import WarmStart
from harness.training.optimizer import make_optimizer, parameters_of
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory

__all__ = ["cached_warm_start", "demonstrations", "warm_start"]

_FORMAT = (
    2  # raise it when the demonstrations, the models or the optimizer settings change, so that old caches are ignored
)


def demonstrations(
    env: gym.Env[str, str], policy: Policy, settings: WarmStart, *, waste: float, count: int, seed: int
) -> list[Trajectory]:
    """Plays episodes with the expert and writes them in the policy's tokens.

    Args:
        env: An environment with ``task_ids`` (of the training split), ``expert()`` and ``random_action(rng)``.
        policy: The policy, whose chat format makes the ids.
        settings: They say which tasks are played, and how long an episode may be.
        waste: The probability that a step is a random action.
        count: The most episodes; there is at most one per task.
        seed: Draws the tasks and the wasted steps.
    """
    task_ids = env.unwrapped.task_ids  # type: ignore[attr-defined]
    found: list[Trajectory] = []
    for index in np.random.default_rng(derive_seed(seed, "tasks")).permutation(len(task_ids)):
        if len(found) >= count:
            break
        task_id = task_ids[int(index)]
        played = demonstrate(
            env,
            task_id,
            waste=waste,
            max_steps=settings.max_steps,
            rng=np.random.default_rng(derive_seed(seed, "waste", len(found))),
            max_optimal_steps=settings.max_optimal_steps,
        )
        if played is None:
            continue
        trajectory = Trajectory(task_id, group=len(found))
        trajectory.add_prompt(policy.chat.prompt_ids(played.info["system_prompt"], played.observations[0]))
        for step, action in enumerate(played.actions, 1):
            reply = policy.chat.reply_ids(action)
            trajectory.ids += reply
            trajectory.action_mask += [1] * len(reply)
            trajectory.logprobs += [0.0] * len(reply)
            if step < len(played.actions) or not played.ended:
                trajectory.add_prompt(policy.chat.observation_ids(played.observations[step], stopped=True))
        if len(trajectory.ids) <= settings.max_tokens:
            found.append(trajectory)
    return found


def warm_start(
    env: gym.Env[str, str],
    policy: Policy,
    settings: WarmStart,
    *,
    seed: int,
    on_batch: Callable[[int, float], None] = lambda batch, loss: None,
) -> dict[str, float]:
    """Trains the policy to imitate the expert, in place.

    Args:
        env: An environment with the training split.
        policy: The policy. Its model is trained.
        settings: See `WarmStart`.
        seed: Draws the demonstrations and the batches.
        on_batch: Called after each batch with its number and its loss.

    Returns:
        ``warm_start/loss`` (the mean of the last 10 batches) and ``warm_start/steps`` (the number of batches).
    """
    clean = demonstrations(
        env, policy, settings, waste=0.0, count=settings.episodes, seed=derive_seed(seed, "demonstrations")
    )
    batches, loss = _clone(
        policy,
        clean,
        settings,
        learning_rate=settings.learning_rate,
        limit=settings.max_batches,
        target=settings.loss_target,
        seed=derive_seed(seed, "clone"),
        on_batch=on_batch,
    )
    if settings.polish_batches:
        short = dataclasses.replace(settings, max_steps=min(40, settings.max_steps))
        mixed = [
            trajectory
            for waste in (0.0, settings.polish_waste)
            for trajectory in demonstrations(
                env, policy, short, waste=waste, count=settings.episodes // 2, seed=derive_seed(seed, f"mixed-{waste}")
            )
        ]
        more, loss = _clone(
            policy,
            mixed,
            settings,
            learning_rate=settings.polish_learning_rate,
            limit=settings.polish_batches,
            target=0.0,
            seed=derive_seed(seed, "polish"),
            on_batch=lambda batch, loss: on_batch(batches + batch, loss),
        )
        batches += more
    return {"warm_start/loss": loss, "warm_start/steps": float(batches)}


def cached_warm_start(
    cache: Path,
    env: gym.Env[str, str],
    policy: Policy,
    settings: WarmStart,
    *,
    seed: int,
    on_batch: Callable[[int, float], None] = lambda batch, loss: None,
) -> dict[str, float]:
    """Like `warm_start`, but reuses the result of an earlier run with the same environment, model, settings and seed.

    The key of the cache covers the initial weights and the vocabulary. So a model with other weights or another vocabulary never
    uses an old entry. An entry is written completely or not at all.
    """
    entry = cache / "warm_start" / _cache_key(env, policy, settings, seed)
    if (entry / "metrics.json").exists():
        weights = torch.load(entry / "model.pt", weights_only=True, map_location=policy.model.device)
        policy.model.load_state_dict(weights)
        return dict(json.loads((entry / "metrics.json").read_text()))
    metrics = warm_start(env, policy, settings, seed=seed, on_batch=on_batch)
    with whole_folder(entry) as part:
        torch.save(policy.model.state_dict(), part / "model.pt")
        (part / "metrics.json").write_text(json.dumps(metrics))
    return metrics


def _cache_key(env: gym.Env[str, str], policy: Policy, settings: WarmStart, seed: int) -> str:
    spec = env.spec
    key = hashlib.blake2b(digest_size=16)
    wrappers = [repr(w) for w in spec.additional_wrappers] if spec else []
    name = [spec.id, sorted((k, repr(v)) for k, v in spec.kwargs.items()), *wrappers] if spec else repr(env)
    about = [_FORMAT, name, dataclasses.asdict(settings), seed, torch.__version__, torch.get_num_threads()]
    key.update(json.dumps(about).encode())
    key.update(json.dumps(sorted(policy.tokenizer.get_vocab().items())).encode())
    for weight in policy.model.state_dict().values():
        key.update(weight.detach().cpu().float().numpy().tobytes())
    return key.hexdigest()


def _clone(
    policy: Policy,
    demos: list[Trajectory],
    settings: WarmStart,
    *,
    learning_rate: float,
    limit: int,
    target: float,
    seed: int,
    on_batch: Callable[[int, float], None],
) -> tuple[int, float]:
    """Minimises the cross-entropy of the demonstrations' action tokens.

    Returns:
        The number of batches, and the mean loss of the last 10.
    """
    optimizer = make_optimizer(policy.model, learning_rate=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    recent: deque[float] = deque(maxlen=10)
    policy.model.train()
    source = _shuffled_batches(demos, settings.batch_tokens, np.random.default_rng(seed))
    batches = 0
    while batches < limit:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (batches + 1) / 20)
        batch = policy.batch(next(source))
        logp, _ = policy.score(batch, 1.0)
        loss = -logp.sum() / batch.action_mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), 1.0)
        optimizer.step()
        recent.append(loss.item())
        batches += 1
        on_batch(batches, recent[-1])
        if batches > 20 and sum(recent) / len(recent) < target:
            break
    optimizer.zero_grad(set_to_none=True)
    return batches, sum(recent) / max(1, len(recent))


def _shuffled_batches(
    demos: list[Trajectory], batch_tokens: int, rng: np.random.Generator
) -> Iterator[list[Trajectory]]:
    """Batches of similar length in random order, pass after pass. Lengths are jittered, so that the batches differ."""
    while True:
        order = [demos[i] for i in rng.permutation(len(demos))]
        lengths = [len(t.ids) + int(8 * rng.random()) for t in order]
        batches = list(padded_microbatches(lengths, batch_tokens))
        for i in rng.permutation(len(batches)):
            yield [order[j] for j in batches[i]]
