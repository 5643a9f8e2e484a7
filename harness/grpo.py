"""`python -m harness.grpo`: trains an agent with GRPO, under the horizon that `--wrapper` names.

The loop reads from top to bottom in `train`: roll out, tell the controller, update the policy, log, save. With
`--async-steps 1` the next rollout begins before the policy update, on a copy of the weights. Under torchrun every rank goes
through the same lines with its share of the episodes (`harness.ranks`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from rich.markup import escape
from transformers.utils.logging import disable_progress_bar

import eh_gym
from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs.actors import in_actors, shared_actors
from envs.runtime import cache_dir
from harness.checkpoint import (
    latest_checkpoint,
    load_training_state,
    save_checkpoint,
    save_training_state,
    write_whole,
)
from harness.config import GRPOConfig, make_controller, preset
from harness.display import Display
from harness.episodes import write_episodes
from harness.evaluate import EvalResult, evaluate_policy, held_out_tasks, summarise, tasks_of
from harness.figure import draw_run
from harness.head import Head
from harness.jobs import lock_folder
from harness.lora import add_lora
from harness.metrics import MetricsLog
from harness.optimizer import make_optimizer
from harness.policy import Policy, load_policy, new_tiny_policy
from harness.ranks import Ranks, check_ranks, copy_weights, join, together
from harness.rollout import EpisodeLengths, EpisodeRequest, announce, rollout
from harness.rollout.player import Player
from harness.runtime import package_versions, pick_device, pick_dtype, set_threads
from harness.sampling.base import Sampler
from harness.sampling.make import make_sampler
from harness.seeding import derive_seed
from harness.tasks import TaskStream
from harness.trajectory import Trajectory
from harness.update import select_episodes, update_policy
from harness.warm_start import cached_warm_start

__all__ = ["main", "train"]


def train(
    config: GRPOConfig, run_dir: Path, display: Display, *, resume: bool = False, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Trains one policy; everything it leaves is in `run_dir`.

    Args:
        config: The settings.
        run_dir: An empty or new folder, or with `resume` the folder of a run that was stopped.
        display: Shows what happens.
        resume: Go on from the newest checkpoint, if there is one.
        ranks: The processes that train together; None for this one alone.

    Returns:
        The evaluations ``{"before": …, "after": …}``, as in ``evaluation.json``.
    """
    started = time.perf_counter()
    set_threads(config.threads)
    ranks = ranks or Ranks()
    check_ranks(ranks, sampler=config.sampler)
    env_args, env_id = config.environment_args(), _environment(config, ranks)
    env = _teacher(config, env_id)
    if config.budget_hint:
        env = _hinted(env, config)
    task_ids = tasks_of(env)
    held_out: Sequence[str] = ()
    if config.eval_tasks:
        held_out = held_out_tasks(env_id, {**env_args, "split": config.eval_split}, config.eval_tasks)

    device = ranks.device(pick_device(config.device))
    policy = _load(config, env, device, ranks)
    controller = make_controller(config)
    stream = TaskStream(task_ids, per_update=config.tasks_per_update, seed=derive_seed(config.seed, "tasks"))
    lengths = EpisodeLengths()
    sampled_at = 0  # how many policy updates the sampler's weights hold
    totals = {"tokens": 0.0, "seconds": 0.0}
    evaluations: dict[str, Any] = {}
    for note in policy.chat.notes:
        display.note(f"note: {note}")

    checkpoint = ranks.from_first(latest_checkpoint(run_dir / "checkpoints") if resume else None)
    if checkpoint is None and config.warm_start.episodes and ranks.first:
        _warm_start(config, env, policy, device, display)
    if config.lora_rank:
        add_lora(policy.model, config.lora_rank, seed=derive_seed(config.seed, "adapters") % 2**31)
    reference = _reference(policy, config, run_dir, device, ranks, first=checkpoint is None)
    sampled_model = copy.deepcopy(policy.model) if config.async_steps or ranks.sharded else None
    sampled = policy if sampled_model is None else dataclasses.replace(policy, model=sampled_model)
    sampled_apart = sampled_model if config.async_steps else None  # holds other weights than the policy's
    if sampled_model is not None and config.sampler == "transformers":
        ranks.fill(sampled_model, device)  # for servers it stays in rank 0's host memory
    ranks.shard(policy, device)
    optimizer = make_optimizer(
        policy.model,
        learning_rate=config.learning_rate,
        betas=(0.9, config.adam_beta2),
        weight_decay=config.weight_decay,
    )
    first = 0
    if checkpoint is not None:
        state = load_training_state(
            checkpoint, model=policy.model, optimizer=optimizer, sampled=sampled_apart, ranks=ranks
        )
        if sampled_model is not None and sampled_apart is None:
            copy_weights(policy.model, sampled_model)
        first, totals, evaluations = state["next_update"], state["totals"], state["evaluations"]
        sampled_at = state["sampled_at"]
        lengths.load_state_dict(state["lengths"])
        if controller is not None:
            controller.load_state_dict(state["controller"])
        display.note(f"resumed at update {first} from {checkpoint}")
    env.close()
    sampler = make_sampler(config, sampled, device=device if ranks.sharded else None, sends=ranks.first)
    ranks.wait()  # for servers that rank 0 sends the weights

    def hand_over() -> None:
        """Gives the sampler the policy's weights."""
        if sampled_model is not None:
            copy_weights(policy.model, sampled_model)
        sampler.weights_changed()
        ranks.wait()

    first_version = sampled_at
    if not evaluations:
        evaluations["before"] = _evaluate(config, sampled, sampler, held_out, display, ranks, "before training")
    training_started = time.perf_counter()

    def save(next_update: int) -> None:
        extra = {
            "next_update": next_update,
            "totals": totals | {"seconds": totals["seconds"] + time.perf_counter() - training_started},
            "controller": controller.state_dict() if controller is not None else None,
            "lengths": lengths.state_dict(),
            "sampled_at": sampled_at,
            "evaluations": evaluations,
        }

        def write(folder: Path) -> None:
            save_training_state(
                folder, model=policy.model, optimizer=optimizer, extra=extra, sampled=sampled_apart, ranks=ranks
            )
            if ranks.first:
                policy.tokenizer.save_pretrained(folder)

        save_checkpoint(run_dir / "checkpoints", next_update, write=write, keep=config.keep_checkpoints, ranks=ranks)

    if checkpoint is None:
        save(0)
    log = MetricsLog(run_dir, first) if ranks.first else None
    episodes = config.tasks_per_update * config.group_size
    own = len(ranks.share(range(episodes)))
    slots = _slots(config, ranks)
    envs = eh_gym.make_vec(
        env_id,
        slots,
        controller,
        record=False,
        budget_hint=config.budget_hint,
        max_workers=min(config.env_threads, slots),
        **env_args,
    )
    settings = config.loss_settings()
    player = Player(overlap=bool(config.async_steps))
    ahead: Future[tuple[list[Trajectory], float]] | None = None  # the next batch, where it is sampled meanwhile

    def play(update: int, on_end: Callable[[Trajectory], None]) -> tuple[list[Trajectory], float]:
        """This rank's episodes of one update, at the present K and with the sampler's present weights; the seconds they took."""
        start = time.perf_counter()
        requests = [
            EpisodeRequest(task_id, group, derive_seed(config.seed, "episode", update, group, member))
            for group, task_id in enumerate(stream.batch(update))
            for member in range(config.group_size)
        ]
        trajectories = rollout(
            envs,
            sampler,
            policy.chat,
            ranks.share(requests),
            temperature=config.temperature,
            max_action_tokens=config.max_action_tokens,
            mode=config.rollout,
            environment_retries=config.environment_retries,
            lengths=lengths,
            on_end=on_end,
        )
        for t in trajectories:  # a sampler counts from the weights that this process began with
            t.versions = [first_version + version for version in t.versions]
        return trajectories, time.perf_counter() - start

    try:
        with display.updates(first, config.updates) as progress:
            for update in range(first, config.updates):
                t0 = time.perf_counter()
                batch = ahead or player.play(play, update, progress.episode_ended(update, own))
                mine, rollout_s = batch.result()
                trajectories, rollout_s = ranks.gather(mine), max(ranks.gather([rollout_s]))
                metrics = rollout_metrics(trajectories)
                metrics["rollout/policy_lag"] = _mean(
                    [update - version for t in trajectories for version in t.versions]
                )

                lengths.observe(trajectories)
                if controller is not None:
                    metrics["horizon/k"] = float(controller.horizon)  # K of these; update() moves the next one's
                    heard = [t for t in trajectories if t.end != "environment-error"]  # others may have had no K yet
                    metrics["horizon/k_mean"] = _mean([t.horizon for t in heard])
                    for t in heard:
                        controller.record(t.outcome())
                    metrics |= {k: v for k, v in controller.update().items() if k != "horizon/k"}

                more = update + 1 < config.updates
                if not config.async_steps:
                    if more:  # what can be made ready for the next tasks is, while the policy is trained
                        coming = [t for t in stream.batch(update + 1) for _ in range(config.group_size)]
                        announce(envs, ranks.share(coming))
                    sampler.sleep()
                elif more:  # --async-steps 1: the next batch starts now
                    if sampled_at < update:
                        hand_over()
                        sampled_at = update
                    ahead = player.play(play, update + 1, progress.episode_ended(update + 1, own))

                t1 = time.perf_counter()
                learning_rate = config.learning_rate_at(update)
                for parameters in optimizer.param_groups:
                    parameters["lr"] = learning_rate
                with together():
                    metrics |= update_policy(
                        policy,
                        optimizer,
                        trajectories,
                        settings,
                        seed=derive_seed(config.seed, "minibatches", update),
                        reference=reference,
                        ranks=ranks,
                    )
                metrics["train/lr"] = learning_rate
                if not config.async_steps:
                    hand_over()
                    sampled_at = update + 1
                t2 = time.perf_counter()

                totals["tokens"] += metrics["tokens/update"]
                metrics["tokens/total"] = totals["tokens"]
                metrics |= {"time/rollout_s": rollout_s, "time/train_s": t2 - t1}
                t3 = time.perf_counter()
                metrics |= {"time/update_s": t3 - t0, "time/total_s": totals["seconds"] + t3 - training_started}
                if config.eval_every and (update + 1) % config.eval_every == 0:
                    count = len(ranks.share(range(len(held_out) * config.eval_every_rollouts)))
                    on_end = progress.evaluation(update, count)
                    result = _held_out(
                        config,
                        sampled,
                        sampler,
                        held_out,
                        ranks,
                        config.temperature,
                        config.eval_every_rollouts,
                        on_end,
                    )
                    metrics["evaluation/mean_at_k"] = result.mean_at_k
                    metrics["evaluation/best_at_k"] = result.best_at_k
                    metrics["time/evaluation_s"] = time.perf_counter() - t3
                    training_started += metrics["time/evaluation_s"]  # the clock of the updates stood still
                if log is not None:
                    log.write(update, metrics)
                if ranks.first and config.log_episodes_every and update % config.log_episodes_every == 0:
                    chosen, _ = select_episodes(
                        trajectories,
                        normalize_std=config.normalize_std,
                        train_on_truncated=config.train_on_truncated,
                    )
                    write_episodes(run_dir / "episodes", update, trajectories, chosen)
                if (update + 1) % config.checkpoint_every == 0 or update + 1 == config.updates:
                    save(update + 1)
                progress.update_ended(update, metrics)
    finally:
        envs.close()  # ends a batch that is still being played
        player.close()
        if log is not None:
            log.close()

    training_s = totals["seconds"] + time.perf_counter() - training_started
    if config.async_steps:  # without, the sampler has them
        hand_over()
    if ranks.first:
        sampled.save(run_dir / "model")
    if "after" not in evaluations:
        evaluations["after"] = _evaluate(config, sampled, sampler, held_out, display, ranks, "after training")
    if not ranks.first:
        return evaluations
    draw_run(
        run_dir / "metrics.jsonl", run_dir / "figure.png", title=f"{config.env}, {config.wrapper}, seed {config.seed}"
    )
    write_whole(run_dir / "evaluation.json", json.dumps(evaluations, indent=2))  # last: a run that has it has ended
    display.summary(config, run_dir, evaluations, training_s, time.perf_counter() - started)
    return evaluations


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The ``rollout/…`` and ``tokens/…`` metrics of one update's episodes; the glossary has the formulas."""
    valid = [t for t in trajectories if t.end != "environment-error"]
    successes = [t for t in valid if t.success]
    turns = [turn for t in valid for turn in t.turns]
    lengths = [t.length for t in successes]
    known = [t for t in valid if t.optimal_steps]
    action, every = sum(t.action_tokens for t in valid), sum(len(t.ids) for t in valid)
    return {
        "rollout/success": _mean([t.success for t in valid]),
        "rollout/success_ceiling": _mean([not t.horizon or (t.optimal_steps or 0) <= t.horizon for t in known]),
        "rollout/reward_mean": _mean([t.reward for t in valid]),
        "rollout/truncated": _mean([t.truncated for t in valid]),
        "rollout/length_mean": _mean([t.length for t in valid]),
        "rollout/length_success_mean": _mean(lengths),
        "rollout/length_success_p90": float(np.percentile(lengths, 90)) if lengths else math.nan,
        "rollout/steps_per_optimum": _mean([t.length / t.optimal_steps for t in successes if t.optimal_steps]),
        "rollout/malformed": _mean([turn.malformed for turn in turns]),
        "rollout/action_cut": _mean([turn.cut for turn in turns]),
        "rollout/environment_errors": float(len(trajectories) - len(valid)),
        "rollout/environment_retries": float(sum(t.retries for t in trajectories)),
        "rollout/context_overflows": float(sum(t.end == "context" for t in valid)),
        "rollout/episodes": float(len(valid)),
        "rollout/steps": float(len(turns)),
        "rollout/action_tokens": float(action),
        "rollout/prompt_tokens": float(every - action),
        "tokens/update": float(every),
        "tokens/failed_attempts": float(sum(t.failed_tokens for t in trajectories)),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _load(config: GRPOConfig, env: gym.Env[str, str], device: str, ranks: Ranks) -> Policy:
    """The policy on `device`; under torchrun rank 0 has it in its host's memory, and the others without weights."""
    policy = None
    if ranks.first:
        home = "cpu" if ranks.sharded else device
        limit, dtype = config.max_observation_tokens or None, pick_dtype(config.dtype)
        if config.model == "tiny":
            seed = derive_seed(config.seed, "weights") % 2**31
            policy = new_tiny_policy(env, seed=seed, max_observation_tokens=limit, packing=config.packing)
            torch.nn.Module.to(policy.model, torch.device(home), dtype)
        else:
            policy = load_policy(
                config.model, dtype=dtype, device=home, max_observation_tokens=limit, packing=config.packing
            )
        Head.check(policy.model)
    policy = ranks.hand_out(policy)
    if config.gradient_checkpointing:
        policy.checkpoint_activations()
    return policy


def _warm_start(config: GRPOConfig, env: gym.Env[str, str], policy: Policy, device: str, display: Display) -> None:
    """Clones the expert into the policy, on `device`, and leaves it where it was."""
    home = policy.model.device
    torch.nn.Module.to(policy.model, torch.device(device))
    with display.warm_start(config.warm_start.max_batches + config.warm_start.polish_batches) as on_batch:
        cloned = cached_warm_start(cache_dir(), env, policy, config.warm_start, seed=config.seed, on_batch=on_batch)
    torch.nn.Module.to(policy.model, home)
    display.note(f"warm start: loss {cloned['warm_start/loss']:.3f} after {cloned['warm_start/steps']:.0f} batches")


def _slots(config: GRPOConfig, ranks: Ranks) -> int:
    """This rank's environments."""
    episodes = config.tasks_per_update * config.group_size
    return -(-min(config.slots or episodes, episodes) // ranks.size)


def _environment(config: GRPOConfig, ranks: Ranks) -> str | EnvSpec:
    """What `gym.make` makes an environment from, on this machine or in Ray actors."""
    if config.env_workers == "local":
        return config.env
    if ranks.size > 1 and not config.ray_address:
        raise ConfigError(
            "with torchrun, --env-workers ray needs a cluster that all ranks share; run `ray start --head` and give "
            "--ray-address auto"
        )
    actors = shared_actors(
        math.ceil(_slots(config, ranks) / config.ray_actor_slots),
        address=config.ray_address,
        cpus=config.ray_actor_cpus,
        timeout_s=config.ray_timeout_s,
    )
    return in_actors(config.env, actors)


def _teacher(config: GRPOConfig, env_id: str | EnvSpec) -> gym.Env[str, str]:
    """An environment to ask for tasks and demonstrations: on this machine, which is faster, if it can be made here."""
    try:
        return gym.make(config.env, **config.environment_args())
    except MissingBackendError:
        if config.env_workers == "local":
            raise
    except (gym.error.Error, TypeError) as error:
        raise ConfigError(f"{config.env} can't be made with --env-args {config.env_args} ({error})") from error
    return gym.make(env_id, **config.environment_args())


def _hinted(env: gym.Env[str, str], config: GRPOConfig) -> gym.Env[str, str]:
    """For the tiny model's tokenizer and demonstrations: each has a K of its own, since K will move in training."""
    low = min(config.k0, config.k_max)
    draws = np.random.default_rng(derive_seed(config.seed, "hints")).integers(low, config.k_max + 1, size=2000)
    controller = eh_gym.StagedHorizon({episode: int(k) for episode, k in enumerate(draws)})
    return eh_gym.BudgetHint(eh_gym.ElasticTimeLimit(env, controller, update_every=1), config.budget_hint)


def _reference(
    policy: Policy, config: GRPOConfig, run_dir: Path, device: str, ranks: Ranks, *, first: bool
) -> Policy | None:
    """The frozen policy of the KL term: the one that the first update starts from, kept in the run folder.

    With LoRA it is the policy itself, whose own weights are frozen.
    """
    if not config.kl_coef:
        return None
    if config.lora_rank:
        return policy
    folder = run_dir / "reference"
    if first:
        reference = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
        if ranks.first:
            policy.save(folder)
    else:
        home, dtype = str(policy.model.device), policy.model.dtype
        reference = ranks.hand_out(
            load_policy(folder, dtype=dtype, device=home, packing=config.packing) if ranks.first else None
        )
    reference.model.eval().requires_grad_(False)
    ranks.shard(reference, device)
    return reference


def _evaluate(
    config: GRPOConfig,
    policy: Policy,
    sampler: Sampler,
    tasks: Sequence[str],
    display: Display,
    ranks: Ranks,
    when: str,
) -> dict[str, Any]:
    """Sampled and greedy episodes on held-out tasks at K = k_max; nothing without tasks."""
    results: dict[str, Any] = {}
    for name, temperature, rollouts in (("sampled", config.temperature, config.eval_rollouts), ("greedy", 0.0, 1)):
        if tasks:
            count = len(ranks.share(range(len(tasks) * rollouts)))
            with display.episodes(f"{name} evaluation {when}", count) as on_end:
                result = _held_out(config, policy, sampler, tasks, ranks, temperature, rollouts, on_end)
            results[name] = dataclasses.asdict(result)
    return results


def _held_out(
    config: GRPOConfig,
    policy: Policy,
    sampler: Sampler,
    tasks: Sequence[str],
    ranks: Ranks,
    temperature: float,
    rollouts: int,
    on_end: Callable[[Trajectory], None],
) -> EvalResult:
    """Plays held-out tasks at K = k_max, with the same random numbers at every call."""
    played = evaluate_policy(
        policy,
        sampler,
        _environment(config, ranks),
        tasks,
        rollouts=rollouts,
        horizon=config.k_max,
        temperature=temperature,
        seed=derive_seed(config.seed, "evaluation"),
        slots=config.slots or config.tasks_per_update * config.group_size,
        env_threads=config.env_threads,
        max_action_tokens=config.max_action_tokens,
        mode=config.rollout,
        environment_retries=config.environment_retries,
        env_args={**config.environment_args(), "split": config.eval_split},
        budget_hint=config.budget_hint,
        on_end=on_end,
        share=ranks.share,
    )
    return summarise(ranks.gather(played))


def saved_config(run_dir: Path) -> GRPOConfig:
    """The settings of the run in a folder.

    Raises:
        ConfigError: There is none, or its settings can't be read.
    """
    path = run_dir / "config.json"
    if not path.exists():
        raise ConfigError(f"no run to resume in {run_dir}: it has no config.json; give the run's folder")
    try:
        return GRPOConfig.from_json(path.read_text())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} can't be resumed from ({error}); it was edited or damaged, or written by another version: restore it, or "
            "start a new run"
        ) from error


def _ignored(words: Sequence[str], wanted: GRPOConfig, config: GRPOConfig) -> list[str]:
    """The flags given beside ``--resume`` that say otherwise than the run's own settings."""
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    names = {flag: flag.removeprefix("--").removeprefix("no-").split(".")[0].replace("-", "_") for flag in given}
    return sorted(
        flag
        for flag, name in names.items()
        if name not in ("resume", "recipe") and getattr(wanted, name, None) != getattr(config, name, None)
    )


def prepare(config: GRPOConfig) -> tuple[GRPOConfig, Path, bool]:
    """Makes or finds the run folder. Returns the settings to use, the folder, and whether it is a resumed run.

    Raises:
        ConfigError: The folder already holds a run, or, to resume, holds none.
    """
    if config.resume is not None:
        return saved_config(config.resume), config.resume, True
    run_dir = config.run_dir or _free_folder(Path("runs") / f"{config.env}-{config.wrapper}-seed{config.seed}")
    if (run_dir / "config.json").exists():
        raise ConfigError(
            f"{run_dir} already holds a run; continue it with --resume {run_dir}, or choose another --run-dir"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "versions.json").write_text(json.dumps(package_versions(), indent=2))
    write_whole(run_dir / "config.json", config.to_json())
    return config, run_dir, False


def _forget(run_dir: Path) -> None:
    """Takes the settings out of the folder of a run that has no checkpoint yet: the mended command is to find it free."""
    if latest_checkpoint(run_dir / "checkpoints") is None:
        for name in ("config.json", "versions.json", ".lock"):
            (run_dir / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in it
            run_dir.rmdir()


def _free_folder(name: Path) -> Path:
    """The folder `name`, or where that is taken the first free one of `name-2`, `name-3` and so on."""
    numbered = (name.with_name(f"{name.name}-{n}") for n in itertools.count(2))
    return next(folder for folder in itertools.chain([name], numbered) if not folder.exists())


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console()
    disable_progress_bar()  # transformers' own; ours are enough
    begun: Path | None = None  # the folder of a run that this process has begun
    run_dir = Path()
    try:
        wanted = tyro.cli(GRPOConfig, args=words, default=preset(words), prog="python -m harness.grpo")
        settings = wanted if wanted.resume is None else saved_config(wanted.resume)
        ranks = join(device=pick_device(settings.device), timeout_s=settings.rank_timeout_s)
        config, run_dir, resume = ranks.from_first(prepare(wanted) if ranks.first else (wanted, Path(), False))
        busy = f"another process trains in {run_dir}; wait for its end, or end it, before this one resumes it"
        with lock_folder(run_dir, busy) if ranks.first else contextlib.nullcontext():
            begun = run_dir if ranks.first and not resume else None
            display = Display(console if ranks.first else Console(quiet=True))
            display.plan(config, run_dir, resume=resume)
            if resume and (ignored := _ignored(words, wanted, config)):
                display.note(f"note: the run goes on with its own settings; ignored: {', '.join(ignored)}")
            train(config, run_dir, display, resume=resume, ranks=ranks)
        ranks.close()
    except EHError as error:
        if begun is not None and isinstance(error, (ConfigError, MissingBackendError)):
            _forget(begun)
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        mend = "free some space, then go on with --resume"
        console.print(f"[red]error:[/red] {escape(f'{error}; {mend} {run_dir}')}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
