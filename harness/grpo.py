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
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.markup import escape
from transformers.utils.logging import disable_progress_bar

import eh_gym
from eh_gym.errors import ConfigError, EHError, MissingBackendError, StateError, WorkerError
from harness import parts
from harness.checkpoint import (
    latest_checkpoint,
    load_training_state,
    save_checkpoint,
    save_training_state,
    write_whole,
)
from harness.config import GRPOConfig, make_controller, preset
from harness.display import Display
from harness.environment import tasks_of
from harness.episodes import write_episodes
from harness.figure import draw_run
from harness.held_out import HeldOut, run_tasks
from harness.jobs import lock_folder
from harness.lora import add_lora
from harness.metrics import MetricsLog, read_metrics
from harness.optimizer import make_optimizer
from harness.ranks import Ranks, check_ranks, copy_weights, join, together
from harness.rollout import EpisodeLengths, EpisodeRequest, announce, rollout
from harness.rollout.metrics import mean, rollout_metrics
from harness.rollout.player import Player
from harness.run_folder import forget, ignored_flags, prepare, saved_config
from harness.runtime import pick_device, set_threads
from harness.sampling.make import make_sampler
from harness.seeding import derive_seed
from harness.tasks import TaskStream
from harness.trajectory import Trajectory
from harness.update import select_episodes, update_policy

__all__ = ["main", "train"]

_LOST_UPDATES = 3  # so many without one finished episode, and the environment will not mend itself


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
    env_id = parts.environment(config, ranks)
    env = parts.teacher(config, env_id)
    task_ids = tasks_of(env)
    held_out_tasks = run_tasks(config, env_id)

    device = ranks.device(pick_device(config.device))
    policy = parts.load(config, env, device, ranks)
    controller = make_controller(config)
    stream = TaskStream(task_ids, per_update=config.tasks_per_update, seed=derive_seed(config.seed, "tasks"))
    lengths = EpisodeLengths()
    sampled_at = 0  # how many policy updates the sampler's weights hold
    totals = {"tokens": 0.0, "seconds": 0.0}
    evaluations: dict[str, Any] = {}
    for note in policy.chat.notes:
        display.note(f"note: {note}")

    checkpoint = ranks.from_first(latest_checkpoint(run_dir / "checkpoints") if resume else None)
    if resume and checkpoint is None and ranks.first:
        _check_nothing_is_lost(run_dir)
    if checkpoint is None and config.warm_start.episodes and ranks.first:
        parts.clone_expert(config, env, policy, device, display)
    if config.lora_rank:
        add_lora(policy.model, config.lora_rank, seed=derive_seed(config.seed, "adapters") % 2**31)
    reference = parts.reference_policy(policy, config, run_dir, device, ranks, first=checkpoint is None)
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
    sampler = make_sampler(
        config,
        sampled,
        device=device if ranks.sharded else None,
        sends=ranks.first,
        adapters=config.lora_handover == "adapters",
    )
    held_out = HeldOut(config, env_id, held_out_tasks, sampled, sampler, ranks)
    ranks.wait()  # for servers that rank 0 sends the weights

    def hand_over() -> None:
        """Gives the sampler the policy's weights."""
        if sampled_model is not None:
            copy_weights(policy.model, sampled_model)
        sampler.weights_changed()
        ranks.wait()

    first_version = sampled_at
    if not evaluations:
        evaluations["before"] = held_out.sampled_and_greedy(display, "before training")
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
    slots = parts.slot_count(config, ranks)
    envs = eh_gym.make_vec(
        env_id,
        slots,
        controller,
        record=False,
        budget_hint=config.budget_hint,
        max_workers=min(config.env_threads, slots),
        **config.environment_args(),
    )
    settings = config.loss_settings()
    player = Player(overlap=bool(config.async_steps))
    lost = 0  # updates in a row of which no environment finished an episode
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
                metrics["rollout/policy_lag"] = mean([update - version for t in trajectories for version in t.versions])

                lost = 0 if metrics["rollout/episodes"] else lost + 1
                if lost == _LOST_UPDATES:
                    raise WorkerError(
                        f"every episode of {lost} updates, one after another, ended with an environment error, the last: "
                        f"{trajectories[-1].error}; mend the environment, then --resume {run_dir}"
                    )
                lengths.observe(trajectories)
                if controller is not None:
                    metrics["horizon/k"] = float(controller.horizon)  # K of these; update() moves the next one's
                    heard = [t for t in trajectories if t.end != "environment-error"]  # others may have had no K yet
                    metrics["horizon/k_mean"] = mean([t.horizon for t in heard])
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
                    rollouts = config.eval_every_rollouts
                    on_end = progress.evaluation(update, held_out.count(rollouts))
                    result = held_out.play(config.temperature, rollouts, on_end)
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
                        kl=bool(config.kl_coef),
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
        evaluations["after"] = held_out.sampled_and_greedy(display, "after training")
    if not ranks.first:
        return evaluations
    draw_run(
        run_dir / "metrics.jsonl", run_dir / "figure.png", title=f"{config.env}, {config.wrapper}, seed {config.seed}"
    )
    write_whole(run_dir / "evaluation.json", json.dumps(evaluations, indent=2))  # last: a run that has it has ended
    display.summary(config, run_dir, evaluations, training_s, time.perf_counter() - started)
    return evaluations


def _check_nothing_is_lost(run_dir: Path) -> None:
    """Raises StateError where a run has metrics and no checkpoint: going on would begin again, over them."""
    path = run_dir / "metrics.jsonl"
    done = len(read_metrics(path)) if path.exists() else 0
    if done:
        raise StateError(
            f"{path} has {done} updates, but {run_dir / 'checkpoints'} has no checkpoint to go on from; restore it, or start a "
            "new run"
        )


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
            if resume and (ignored := ignored_flags(words, wanted, config)):
                display.note(f"note: the run goes on with its own settings; ignored: {', '.join(ignored)}")
            train(config, run_dir, display, resume=resume, ranks=ranks)
        ranks.close()
    except EHError as error:
        if begun is not None and isinstance(error, (ConfigError, MissingBackendError)):
            forget(begun)
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        mend = "free some space, then go on with --resume"
        console.print(f"[red]error:[/red] {escape(f'{error}; {mend} {run_dir}')}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
