"""Behaviour cloning from the environment's own expert, so that GRPO starts with successes to learn from.

Without it, nearly all attempts of a tiny or small model fail, and every advantage is 0. Cloning stops at a loss target,
because the loss of a tiny model falls in a phase transition whose time varies with the seed.
"""

import dataclasses
import hashlib
import inspect
import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

from eh_gym.errors import ConfigError
from envs.expert import demonstrated_tasks
from harness.clone.demonstrations import demonstration
from harness.machine.runtime import return_memory
from harness.model.batch import microbatches, padded_microbatches
from harness.model.lora import has_lora
from harness.model.policy import Policy
from harness.records.files import sha256
from harness.settings.optimizer import Optimizer
from harness.settings.warm_start import WarmStart
from harness.types.seeding import derive_seed
from harness.types.trajectory import TokenSequence, Trajectory
from harness.update.optimizer import make_optimizer, parameters_of

_LEAST_PRETRAINED = 10_000_000  # parameters; a smaller model is a tiny one
_MAX_STEPS, _MAX_POLISH_STEPS = 60, 40  # the most steps of a demonstration


@dataclasses.dataclass(frozen=True)
class Cloned:
    """The result of cloning. Tokens include padding. The loss is the mean of the last batches, in nats per token."""

    demonstrations: int
    batches: int
    loss: float
    tokens: int


def is_pretrained(policy: Policy) -> bool:
    return policy.model.num_parameters() >= _LEAST_PRETRAINED


def demonstrations(
    env: gym.Env[str, str],
    policy: Policy,
    settings: WarmStart,
    *,
    waste: float,
    count: int,
    seed: int,
    max_steps: int = _MAX_STEPS,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[Trajectory]:
    """Plays tasks with the expert, and writes them in the policy's tokens."""
    task_ids = demonstrated_tasks(env)
    played: list[Trajectory] = []
    order = np.random.default_rng(derive_seed(seed, "tasks")).permutation(len(task_ids))
    for index in order[: 1000 + 100 * count].tolist():  # do not search all of a million tasks
        if len(played) == count:
            break
        trajectory = demonstration(
            env,
            task_ids[index],
            waste=waste,
            max_steps=max_steps,
            rng=np.random.default_rng(derive_seed(seed, "waste", len(played))),
            max_optimal_steps=settings.max_optimal_steps,
            group=len(played),
            chat=policy.chat,
        )
        if trajectory is not None and len(trajectory.ids) <= settings.max_tokens:
            played.append(trajectory)
            on_episode(trajectory)
    if not played:
        raise ConfigError(
            f"no task that was tried takes the expert at most {settings.max_optimal_steps} steps (0: any number) and "
            f"{settings.max_tokens} tokens; raise --warm-start.max-optimal-steps, or max_tokens in a recipe's "
            "[warm_start]"
        )
    return played


def warm_start(
    env: gym.Env[str, str],
    policy: Policy,
    settings: WarmStart,
    *,
    seed: int,
    on_batch: Callable[[int, float], None] = lambda batch, loss: None,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> Cloned:
    """Trains the policy to imitate the expert, in place: its adapters if it has some, otherwise all weights.

    `on_batch` gets each batch's number and loss, and `on_episode` each demonstration.
    """
    play = partial(demonstrations, env, policy, settings, on_episode=on_episode)
    rate = settings.rate(policy.model.num_parameters(), lora=has_lora(policy.model))
    done = _clone(
        policy,
        play(waste=0.0, count=settings.episodes, seed=derive_seed(seed, "demonstrations")),
        learning_rate=rate,
        batch_tokens=settings.batch_tokens,
        limit=settings.max_batches,
        target=settings.loss_target,
        seed=derive_seed(seed, "clone"),
        on_batch=on_batch,
    )
    if not settings.polish_batches:
        return done
    mixed = [
        trajectory
        for waste in (0.0, settings.polish_waste)
        for trajectory in play(
            waste=waste,
            count=max(1, settings.episodes // 2),
            seed=derive_seed(seed, f"mixed-{waste}"),
            max_steps=_MAX_POLISH_STEPS,
        )
    ]
    polished = _clone(
        policy,
        mixed,
        learning_rate=settings.polish_learning_rate or rate / 3,
        batch_tokens=settings.batch_tokens,
        limit=settings.polish_batches,
        target=0.0,
        seed=derive_seed(seed, "polish"),
        on_batch=lambda batch, loss: on_batch(done.batches + batch, loss),
    )
    return Cloned(done.demonstrations, done.batches + polished.batches, polished.loss, done.tokens + polished.tokens)


def clone_key(
    env: gym.Env[str, str], policy: Policy, settings: WarmStart, *, lora_rank: int, seed: int, device: str
) -> str:
    """Names a clone's folder: a hash of what makes it, with weights, the environment's code and the `device`."""
    tasks = demonstrated_tasks(env)
    spec, chat, key = env.spec, policy.chat, hashlib.blake2b(digest_size=16)
    arguments = sorted((k, repr(v)) for k, v in spec.kwargs.items()) if spec else []
    name = [spec.id, arguments, *map(repr, spec.additional_wrappers)] if spec else repr(env)
    kind = torch.device(device).type  # another one rounds differently
    how = [str(policy.model.dtype), policy.packs, lora_rank, torch.__version__, torch.get_num_threads(), kind]
    # These ids show the template, and how observations are cut.
    texts = [chat.prompt_ids("s", "u"), chat.reply_ids("a"), chat.observation_ids("a long text " * 8192, stopped=True)]
    about = [
        name,
        dataclasses.asdict(settings),
        seed,
        how,
        texts,
        _code_of(env),
        [len(tasks), *tasks[:8]],  # which data are installed
        sorted(policy.tokenizer.get_vocab().items()),
    ]
    key.update(json.dumps(about, sort_keys=True).encode())
    for weight in (*policy.model.state_dict().values(), *policy.model.buffers()):  # the rotary frequencies are buffers
        key.update(weight.detach().cpu().float().numpy().tobytes())
    return key.hexdigest()


def _code_of(env: gym.Env[str, str]) -> list[str]:
    """The digests of the code of `env`, or of those it mixes: of each class the package, or the files beside it."""
    mixed = getattr(env.unwrapped, "envs", {"": env}).values()
    classes = {kind for part in mixed for kind in type(part.unwrapped).__mro__ if issubclass(kind, gym.Env)}
    folders = sorted({Path(inspect.getfile(kind)).parent for kind in classes - {gym.Env}})
    return [sha256(*sorted(f.glob("**/*.py" if (f / "__init__.py").exists() else "*.py"))) for f in folders]


def _clone(
    policy: Policy,
    demos: list[Trajectory],
    *,
    learning_rate: float,
    batch_tokens: int,
    limit: int,
    target: float,
    seed: int,
    on_batch: Callable[[int, float], None],
) -> Cloned:
    """Minimises the cross-entropy of actions for `limit` batches, or until the mean loss is below `target`."""
    optimizer = make_optimizer(policy.model, Optimizer(learning_rate=learning_rate, adam_beta2=0.98, weight_decay=0.01))
    # The learning rate rises until this batch, and cloning does not stop before it.
    least = 4 if is_pretrained(policy) else 20
    recent: deque[float] = deque(maxlen=min(10, least))
    policy.model.train()
    source = _batches(policy, demos, batch_tokens, np.random.default_rng(seed))
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
    return Cloned(len(demos), batches, sum(recent) / max(1, len(recent)), tokens)


def _batches(
    policy: Policy, demos: list[Trajectory], batch_tokens: int, rng: np.random.Generator
) -> Iterator[list[TokenSequence]]:
    """Batches in random order, pass after pass.

    A pretrained model's demonstrations with the same system prompt share its tokens. Others are padded to similar
    lengths, with some jitter so that the batches differ.
    """
    shares = is_pretrained(policy) and policy.packs
    prompts = {t.system_prompt: number for number, t in enumerate(demos)}
    sequences = [
        dataclasses.replace(s, group=prompts[t.system_prompt]) if shares else s for t in demos for s in t.sequences
    ]
    while True:
        order = [sequences[i] for i in rng.permutation(len(sequences))]
        if shares:
            batches = microbatches(order, batch_tokens)
        else:
            lengths = [len(s.ids) + int(8 * rng.random()) for s in order]
            batches = list(padded_microbatches(lengths, batch_tokens))
        for i in rng.permutation(len(batches)):
            yield [order[j] for j in batches[i]]
