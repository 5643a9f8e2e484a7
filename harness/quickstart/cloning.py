"""Behaviour cloning from the environment's own expert, so that GRPO starts with successes to learn from.

Without it, a model with random weights never succeeds, and a small pretrained one hardly ever: the rewards in every group are
equal, and every advantage is 0. The warm start stops at a loss target and not after a number of steps, because the loss of a
tiny model falls in a phase transition whose time varies with the seed. A pretrained model with LoRA learns in its adapters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from eh_gym.errors import ConfigError
from envs.expert import demonstrate, demonstrated_tasks, first_episodes
from harness.policy.batch import microbatches, padded_microbatches
from harness.policy.lora import has_lora
from harness.policy.policy import Policy
from harness.rollout.conversation import Conversation
from harness.run.files import whole_folder
from harness.run.runtime import return_memory
from harness.settings.warm_start import LEAST_PRETRAINED, WarmStart
from harness.training.optimizer import make_optimizer, parameters_of
from harness.types.seeding import derive_seed
from harness.types.trajectory import TokenSequence, Trajectory, Turn

__all__ = ["cached_warm_start", "demonstrations", "is_pretrained", "text_perplexity", "warm_start"]

# Raise it when the demonstrations, the models or the optimizer settings change, so that old caches are ignored.
_FORMAT = 3
# Of all cached warm starts. Those of tiny models take a few MB each, those of others as much as their weights.
_CACHE_BYTES = 4 << 30
# After so many tasks in a row that do not fit, a split of a million tasks is not searched to its end.
_MOST_MISSES = 1000
_PLAIN_TEXT = Path(__file__).with_name("plain_text.txt")


def demonstrations(
    env: gym.Env[str, str], policy: Policy, settings: WarmStart, *, waste: float, count: int, seed: int
) -> list[Trajectory]:
    """Plays episodes with the expert and writes them in the policy's tokens.

    Args:
        env: An environment with ``task_ids`` (of the training split), ``expert()`` and ``random_action(rng)``.
        policy: The policy, whose chat format makes the ids.
        settings: They say which tasks are played, and how long an episode may be.
        waste: The probability that a step is a random action.
        count: The most episodes; there is at most one per task. There are fewer if too few tasks fit the settings.
        seed: Draws the tasks and the wasted steps.

    Raises:
        ConfigError: The environment has no expert, or no episode is short enough.
    """
    missing = [name for name in ("task_ids", "expert", "random_action") if not hasattr(env.unwrapped, name)]
    if missing:
        raise ConfigError(
            f"the warm start needs an environment with {', '.join(missing)}, which {env.unwrapped!r} lacks; leave it out "
            "with --warm-start.episodes 0"
        )
    task_ids = demonstrated_tasks(env)
    found: list[Trajectory] = []
    shortest = math.inf
    misses = 0
    for index in np.random.default_rng(derive_seed(seed, "tasks")).permutation(len(task_ids)):
        if len(found) >= count or misses >= max(_MOST_MISSES, 20 * count):
            break
        misses += 1
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
        trajectory = Trajectory(task_id, group=len(found), system_prompt=played.info["system_prompt"])
        conversation = Conversation(policy.chat, played.observations[0], played.info)
        trajectory.add_prompt(conversation.prompt_ids)
        for step, action in enumerate(played.actions, 1):
            reply = policy.chat.reply_ids(action)
            trajectory.ids += reply
            trajectory.action_mask += [1] * len(reply)
            trajectory.logprobs += [0.0] * len(reply)
            if step < len(played.actions) or not played.ended:
                turn = Turn(action, played.observations[step], cut=False, malformed=False)
                info = played.infos[step - 1]
                trajectory.go_on(conversation.answered(trajectory.ids, turn, info, stopped=True))
        shortest = min(shortest, len(trajectory.ids))
        if len(trajectory.ids) <= settings.max_tokens:
            found.append(trajectory)
            misses = 0
    if count and not found and shortest < math.inf:
        raise ConfigError(
            f"no demonstration has at most {settings.max_tokens} tokens; the shortest has {shortest}; raise "
            "--warm-start.max-tokens"
        )
    if count and not found:
        raise ConfigError(
            f"the expert solves no task within {settings.max_optimal_steps} steps; raise --warm-start.max-optimal-steps"
        )
    return found


def is_pretrained(policy: Policy) -> bool:
    """Whether the model is too large to be one of the tiny ones, whose weights were random at first."""
    return policy.model.num_parameters() >= LEAST_PRETRAINED


def warm_start(
    env: gym.Env[str, str],
    policy: Policy,
    settings: WarmStart,
    *,
    seed: int,
    on_batch: Callable[[int, float], None] = lambda batch, loss: None,
) -> dict[str, float]:
    """Trains the policy to imitate the expert, in place: its adapters if it has some, otherwise all weights.

    Args:
        env: An environment with the training split.
        policy: The policy. Its model is trained.
        settings: See `WarmStart`.
        seed: Draws the demonstrations and the batches.
        on_batch: Called after each batch with its number and its loss.

    Returns:
        The metrics ``warm_start/...``, which the glossary explains. Those of the plain text are for pretrained models only.

    Raises:
        ConfigError: There are no demonstrations, see `demonstrations`.
    """
    pretrained = is_pretrained(policy)
    settings = settings.for_model(policy.model.num_parameters(), lora=has_lora(policy.model))
    perplexity = {"warm_start/perplexity_before": text_perplexity(policy)} if pretrained else {}
    clean = demonstrations(
        env, policy, settings, waste=0.0, count=settings.episodes, seed=derive_seed(seed, "demonstrations")
    )
    cpu_s, seconds = time.process_time(), time.perf_counter()
    done = _clone(
        policy,
        clean,
        settings,
        learning_rate=settings.learning_rate,
        limit=settings.updates or settings.max_batches,
        target=0.0 if settings.updates else settings.loss_target,
        seed=derive_seed(seed, "clone"),
        on_batch=on_batch,
    )
    if settings.polish_batches:
        short = dataclasses.replace(settings, max_steps=min(40, settings.max_steps))
        mixed = [
            trajectory
            for waste in (0.0, settings.polish_waste)
            for trajectory in demonstrations(
                env,
                policy,
                short,
                waste=waste,
                count=max(1, settings.episodes // 2),
                seed=derive_seed(seed, f"mixed-{waste}"),
            )
        ]
        polished = _clone(
            policy,
            mixed,
            settings,
            learning_rate=settings.polish_learning_rate,
            limit=settings.polish_batches,
            target=0.0,
            seed=derive_seed(seed, "polish"),
            on_batch=lambda batch, loss: on_batch(done.batches + batch, loss),
        )
        done = _Cloned(done.batches + polished.batches, polished.loss, done.tokens + polished.tokens)
    cpu_s, seconds = time.process_time() - cpu_s, time.perf_counter() - seconds
    if pretrained:
        perplexity["warm_start/perplexity_after"] = text_perplexity(policy)
    return {
        "warm_start/loss": done.loss,
        "warm_start/steps": float(done.batches),
        "warm_start/demonstrations": float(len(clean)),
        "warm_start/tokens": float(done.tokens),
        "warm_start/cpu_s": cpu_s,
        "warm_start/seconds": seconds,
        **perplexity,
    }


@torch.no_grad()
def text_perplexity(policy: Policy) -> float:
    """The perplexity of a plain English text of some 400 tokens, which no environment holds.

    It shows whether cloning has cost the model what it knew: exp of the mean cross-entropy per token, without chat format.
    """
    ids = policy.tokenizer(_PLAIN_TEXT.read_text(encoding="utf-8"), add_special_tokens=False).input_ids
    prompt, begin = policy.chat.prompt_ids("s", "u"), policy.tokenizer.bos_token_id
    ids = [begin] * (prompt[0] == begin and prompt.count(begin) == 1) + ids  # SmolLM2's begins every message
    policy.model.eval()
    batch = policy.batch([TokenSequence(0, ids, [1] * len(ids), [0.0] * len(ids))])
    logp, _ = policy.score(batch, 1.0)
    return math.exp(-float(logp.sum() / batch.action_mask.sum()))


def cached_warm_start(
    cache: Path,
    env: gym.Env[str, str],
    policy: Policy,
    settings: WarmStart,
    *,
    seed: int,
    on_batch: Callable[[int, float], None] = lambda batch, loss: None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """Like `warm_start`, but reuses the result of an earlier run with the same environment, model, settings and seed.

    The key of the cache covers the weights, the vocabulary and the first episodes of the expert. So a model with other weights or
    another vocabulary never uses an old entry, nor does an environment whose expert or texts have changed. An entry is written
    completely or not at all, and holds the trained weights alone. If all entries together have more than 4 GiB, those that were
    used the longest time ago are deleted.

    Args:
        cache: The entries are in its folder ``warm_start``.
        env: As for `warm_start`, like the arguments that are not listed.
        policy: The policy. Its model is trained, or gets the weights of the entry.
        settings: See `WarmStart`.
        seed: Draws the demonstrations and the batches.
        on_batch: Called after each batch.
        say: Called with a line on the entry of a pretrained model: where it is, and how large.
    """
    entry = cache / "warm_start" / _cache_key(env, policy, settings, seed)
    if (found := _read(entry)) is not None:
        metrics, weights = found
        policy.model.load_state_dict(weights, strict=False)
        if is_pretrained(policy):
            say(f"warm start: taken from {entry}, where an earlier run left it")
        return metrics
    metrics = warm_start(env, policy, settings, seed=seed, on_batch=on_batch)
    trained = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    adapted = has_lora(policy.model)  # then the frozen weights are those of the model's folder
    kept = {name: w for name, w in policy.model.state_dict().items() if name in trained or not adapted}
    with whole_folder(entry) as part:
        torch.save(kept, part / "model.pt")
        (part / "metrics.json").write_text(json.dumps(metrics))
    if is_pretrained(policy):
        say(f"warm start: kept in {entry} ({_size(entry) / 1e6:.0f} MB), for runs with the same settings")
    _forget_oldest(entry.parent, keep=entry)
    return metrics


def _read(entry: Path) -> tuple[dict[str, float], dict[str, Tensor]] | None:
    """The metrics and the weights of an entry; None if there is none. A damaged one is deleted, so that it is written again."""
    try:
        metrics = dict(json.loads((entry / "metrics.json").read_text()))
        weights = torch.load(entry / "model.pt", weights_only=True, map_location="cpu")
        os.utime(entry)
    except FileNotFoundError:  # or another process deletes it now
        return None
    except (ValueError, EOFError, RuntimeError, UnpicklingError):  # empty or cut short, after a power loss
        shutil.rmtree(entry, ignore_errors=True)
        return None
    return metrics, weights


def _forget_oldest(folder: Path, *, keep: Path) -> None:
    """Deletes the entries that were used the longest time ago until the folder has at most `_CACHE_BYTES`.

    Other processes may write and delete entries meanwhile. Those that they are writing do not count.
    """
    used: list[tuple[float, Path]] = []
    for entry in folder.iterdir():
        if entry != keep and not entry.name.startswith(".part-"):
            with suppress(FileNotFoundError):
                used.append((entry.stat().st_mtime, entry))
    total = _size(keep)
    for _, entry in sorted(used, reverse=True):
        total += _size(entry)
        if total > _CACHE_BYTES:
            shutil.rmtree(entry, ignore_errors=True)


def _size(folder: Path) -> int:
    """The bytes of the files in a folder; 0 if another process deletes it now."""
    with suppress(FileNotFoundError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0


def _cache_key(env: gym.Env[str, str], policy: Policy, settings: WarmStart, seed: int) -> str:
    spec = env.spec
    key = hashlib.blake2b(digest_size=16)
    wrappers = [repr(w) for w in spec.additional_wrappers] if spec else []
    name = [spec.id, sorted((k, repr(v)) for k, v in spec.kwargs.items()), *wrappers] if spec else repr(env)
    how = [str(policy.model.dtype), policy.packs, has_lora(policy.model)]
    # Texts as the demonstrations have them: they show the template, and how long observations are cut.
    chat = policy.chat
    texts = [chat.prompt_ids("s", "u"), chat.reply_ids("a"), chat.observation_ids("a long text " * 8192, stopped=True)]
    about = [_FORMAT, name, dataclasses.asdict(settings), seed, torch.__version__, torch.get_num_threads(), how, texts]
    key.update(json.dumps([*about, first_episodes(env, max_steps=settings.max_steps)], sort_keys=True).encode())
    key.update(json.dumps(sorted(policy.tokenizer.get_vocab().items())).encode())
    # `state_dict` leaves out the rotary frequencies, which are buffers.
    for weight in (*policy.model.state_dict().values(), *policy.model.buffers()):
        key.update(weight.detach().cpu().float().numpy().tobytes())
    return key.hexdigest()


@dataclasses.dataclass(frozen=True)
class _Cloned:
    """What cloning has done.

    Attributes:
        batches: The number of batches.
        loss: The mean loss of the last 10 of them (or 4, with a pretrained model), in nats per token.
        tokens: The number of tokens that went through the model, padding included.
    """

    batches: int
    loss: float
    tokens: int


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
) -> _Cloned:
    """Minimises the cross-entropy of the demonstrations' action tokens."""
    optimizer = make_optimizer(policy.model, learning_rate=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    least = (
        4 if is_pretrained(policy) else 20
    )  # the learning rate rises until this batch, and no earlier one is the last
    recent: deque[float] = deque(maxlen=min(10, least))
    policy.model.train()
    rng = np.random.default_rng(seed)
    written = [(t, s) for t in demos for s in t.sequences]
    if is_pretrained(policy) and policy.packs:  # demonstrations with the same system prompt share its tokens
        prompts = {t.system_prompt: number for number, t in enumerate(demos)}
        shared = [dataclasses.replace(s, group=prompts[t.system_prompt]) for t, s in written]
        source = _batches(shared, lambda order: microbatches(order, settings.batch_tokens), rng)
    else:
        source = _batches([s for _, s in written], lambda order: _alike(order, settings.batch_tokens, rng), rng)
    batches = tokens = 0
    while batches < limit:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (batches + 1) / least)
        batch = policy.batch(next(source))
        logp, _ = policy.score(batch, 1.0)
        loss = -logp.sum() / batch.action_mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), 1.0)
        optimizer.step()
        recent.append(loss.item())
        batches += 1
        tokens += batch.ids.numel()
        on_batch(batches, recent[-1])
        if batches > least and sum(recent) / len(recent) < target:
            break
    optimizer.zero_grad(set_to_none=True)
    return_memory(policy.model.device)
    return _Cloned(batches, sum(recent) / max(1, len(recent)), tokens)


def _batches(
    demos: list[TokenSequence], split: Callable[[list[TokenSequence]], list[list[int]]], rng: np.random.Generator
) -> Iterator[list[TokenSequence]]:
    """Batches in random order, pass after pass."""
    while True:
        order = [demos[i] for i in rng.permutation(len(demos))]
        batches = split(order)
        for i in rng.permutation(len(batches)):
            yield [order[j] for j in batches[i]]


def _alike(demos: list[TokenSequence], batch_tokens: int, rng: np.random.Generator) -> list[list[int]]:
    """Padded batches of similar length. Lengths are jittered, so that the batches differ."""
    return list(padded_microbatches([len(t.ids) + int(8 * rng.random()) for t in demos], batch_tokens))
