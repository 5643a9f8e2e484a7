"""`python -m harness.grpo`: trains an agent with GRPO, under the horizon that `--wrapper` names.

The loop reads from top to bottom in `train`: roll out, tell the controller, update the policy, log, save. With
`--async-steps 1` the next rollout begins before the policy update, on a copy of the weights. Left out: training on several
devices.
"""

from __future__ import annotations

import copy
import dataclasses
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
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

import eh_gym
from eh_gym.errors import ConfigError, EHError
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
from harness.evaluate import EvalResult, evaluate_policy, held_out_tasks, summarise
from harness.figure import draw_run
from harness.head import Head
from harness.lora import add_lora
from harness.metrics import MetricsLog
from harness.optimizer import make_optimizer
from harness.policy import Policy, load_policy, new_tiny_policy
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


def train(config: GRPOConfig, run_dir: Path, display: Display, *, resume: bool = False) -> dict[str, Any]:
    """Trains one policy; everything it leaves is in `run_dir`.

    Args:
        config: The settings.
        run_dir: An empty or new folder, or with `resume` the folder of a run that was stopped.
        display: Shows what happens.
        resume: Go on from the newest checkpoint, if there is one.

    Returns:
        The evaluations ``{"before": …, "after": …}``, as in ``evaluation.json``.
    """
    started = time.perf_counter()
    set_threads(config.threads)
    env_args = config.environment_args()
    env = gym.make(config.env, **env_args)
    task_ids: Sequence[str] = env.unwrapped.task_ids  # type: ignore[attr-defined]

    policy = _load(config, env)
    controller = make_controller(config)
    stream = TaskStream(task_ids, per_update=config.tasks_per_update, seed=derive_seed(config.seed, "tasks"))
    lengths = EpisodeLengths()
    sampled_at = 0  # how many policy updates the sampler's weights hold
    totals = {"tokens": 0.0, "seconds": 0.0}
    evaluations: dict[str, Any] = {}
    for note in policy.chat.notes:
        display.note(f"note: {note}")

    checkpoint = latest_checkpoint(run_dir / "checkpoints") if resume else None
    if checkpoint is None and config.warm_start.episodes:
        with display.warm_start(config.warm_start.max_batches + config.warm_start.polish_batches) as on_batch:
            cloned = cached_warm_start(cache_dir(), env, policy, config.warm_start, seed=config.seed, on_batch=on_batch)
        display.note(f"warm start: loss {cloned['warm_start/loss']:.3f} after {cloned['warm_start/steps']:.0f} batches")
    if config.lora_rank:
        add_lora(policy.model, config.lora_rank, seed=derive_seed(config.seed, "adapters") % 2**31)
    sampled_model = copy.deepcopy(policy.model) if config.async_steps else None
    optimizer = make_optimizer(
        policy.model,
        learning_rate=config.learning_rate,
        betas=(0.9, config.adam_beta2),
        weight_decay=config.weight_decay,
    )
    first = 0
    if checkpoint is not None:
        state = load_training_state(checkpoint, model=policy.model, optimizer=optimizer, sampled=sampled_model)
        first, totals, evaluations = state["next_update"], state["totals"], state["evaluations"]
        sampled_at = state["sampled_at"]
        lengths.load_state_dict(state["lengths"])
        if controller is not None:
            controller.load_state_dict(state["controller"])
        display.note(f"resumed at update {first} from {checkpoint}")
    env.close()
    held_out: Sequence[str] = ()
    if config.eval_tasks:
        held_out = held_out_tasks(config.env, {**env_args, "split": config.eval_split}, config.eval_tasks)
    reference = _reference(policy, config, run_dir, first=checkpoint is None)
    sampled = policy if sampled_model is None else dataclasses.replace(policy, model=sampled_model)
    sampler = make_sampler(config, sampled)
    first_version = sampled_at
    if not evaluations:
        evaluations["before"] = _evaluate(config, policy, sampler, held_out, display, "before training")
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
            save_training_state(folder, model=policy.model, optimizer=optimizer, extra=extra, sampled=sampled_model)
            policy.tokenizer.save_pretrained(folder)

        save_checkpoint(run_dir / "checkpoints", next_update, write=write, keep=config.keep_checkpoints)

    if checkpoint is None:
        save(0)
    log = MetricsLog(run_dir, first)
    episodes = config.tasks_per_update * config.group_size
    slots = min(config.slots or episodes, episodes)
    envs = eh_gym.make_vec(
        config.env,
        slots,
        controller,
        record=False,
        max_workers=min(config.env_threads, slots),
        **env_args,
    )
    settings = config.loss_settings()
    player = Player(overlap=bool(config.async_steps))
    ahead: Future[tuple[list[Trajectory], float]] | None = None  # the next batch, where it is sampled meanwhile

    def play(update: int, on_end: Callable[[Trajectory], None]) -> tuple[list[Trajectory], float]:
        """The episodes of one update, at the present K and with the sampler's present weights; and the seconds they took."""
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
            requests,
            horizon=controller.horizon if controller is not None else 0,
            temperature=config.temperature,
            max_action_tokens=config.max_action_tokens,
            mode=config.rollout,
            environment_retries=config.environment_retries,
            lengths=lengths,
            on_end=on_end,
        )
        return trajectories, time.perf_counter() - start

    try:
        with display.updates(first, config.updates) as progress:
            for update in range(first, config.updates):
                t0 = time.perf_counter()
                batch = ahead or player.play(play, update, progress.episode_ended(update, episodes))
                trajectories, rollout_s = batch.result()
                metrics = rollout_metrics(trajectories)
                metrics["rollout/policy_lag"] = _mean(
                    [update - first_version - version for t in trajectories for version in t.versions]
                )

                lengths.observe(trajectories)
                if controller is not None:
                    metrics["horizon/k"] = float(trajectories[0].horizon)  # K of these; update() moves the next one's
                    for t in trajectories:
                        if t.end != "environment-error":
                            controller.record(t.outcome())
                    metrics |= {k: v for k, v in controller.update().items() if k != "horizon/k"}

                more = update + 1 < config.updates
                if sampled_model is None:
                    if more:  # what can be made ready for the next tasks is, while the policy is trained
                        announce(envs, [t for t in stream.batch(update + 1) for _ in range(config.group_size)])
                    sampler.sleep()
                elif more:  # --async-steps 1: the next batch starts now
                    if sampled_at < update:
                        copy_weights(policy.model, sampled_model)
                        sampler.weights_changed()
                        sampled_at = update
                    ahead = player.play(play, update + 1, progress.episode_ended(update + 1, episodes))

                t1 = time.perf_counter()
                learning_rate = config.learning_rate_at(update)
                for parameters in optimizer.param_groups:
                    parameters["lr"] = learning_rate
                metrics |= update_policy(
                    policy,
                    optimizer,
                    trajectories,
                    settings,
                    seed=derive_seed(config.seed, "minibatches", update),
                    reference=reference,
                )
                metrics["train/lr"] = learning_rate
                if sampled_model is None:
                    sampler.weights_changed()
                    sampled_at = update + 1
                t2 = time.perf_counter()

                totals["tokens"] += metrics["tokens/update"]
                metrics["tokens/total"] = totals["tokens"]
                metrics |= {"time/rollout_s": rollout_s, "time/train_s": t2 - t1}
                t3 = time.perf_counter()
                metrics |= {"time/update_s": t3 - t0, "time/total_s": totals["seconds"] + t3 - training_started}
                if config.eval_every and (update + 1) % config.eval_every == 0:
                    on_end = progress.evaluation(update, len(held_out) * config.eval_every_rollouts)
                    result = _held_out(
                        config, policy, sampler, held_out, config.temperature, config.eval_every_rollouts, on_end
                    )
                    metrics["evaluation/mean_at_k"] = result.mean_at_k
                    metrics["evaluation/best_at_k"] = result.best_at_k
                    metrics["time/evaluation_s"] = time.perf_counter() - t3
                    training_started += metrics["time/evaluation_s"]  # the clock of the updates stood still
                log.write(update, metrics)
                if config.log_episodes_every and update % config.log_episodes_every == 0:
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
        log.close()

    training_s = totals["seconds"] + time.perf_counter() - training_started
    policy.save(run_dir / "model")
    if "after" not in evaluations:
        if sampled_model is not None:
            copy_weights(policy.model, sampled_model)
            sampler.weights_changed()
        evaluations["after"] = _evaluate(config, policy, sampler, held_out, display, "after training")
    draw_run(
        run_dir / "metrics.jsonl", run_dir / "figure.png", title=f"{config.env}, {config.wrapper}, seed {config.seed}"
    )
    write_whole(run_dir / "evaluation.json", json.dumps(evaluations, indent=2))  # last: a run that has it has ended
    display.summary(config, run_dir, evaluations, training_s, time.perf_counter() - started)
    return evaluations


@torch.no_grad()
def copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Gives `target` the weights of `source`, in place; no sampling may be on its way."""
    for new, old in zip(source.parameters(), target.parameters(), strict=True):
        old.copy_(new)


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


def _load(config: GRPOConfig, env: gym.Env[str, str]) -> Policy:
    limit, device, dtype = config.max_observation_tokens or None, pick_device(config.device), pick_dtype(config.dtype)
    if config.model == "tiny":
        seed = derive_seed(config.seed, "weights") % 2**31
        policy = new_tiny_policy(env, seed=seed, max_observation_tokens=limit, packing=config.packing)
        torch.nn.Module.to(policy.model, torch.device(device), dtype)
    else:
        policy = load_policy(
            config.model, dtype=dtype, device=device, max_observation_tokens=limit, packing=config.packing
        )
    Head.check(policy.model)
    if config.gradient_checkpointing:
        policy.checkpoint_activations()
    return policy


def _reference(policy: Policy, config: GRPOConfig, run_dir: Path, *, first: bool) -> Policy | None:
    """The frozen policy of the KL term: the one that the first update starts from, kept in the run folder.

    With LoRA it is the policy itself, whose own weights are frozen.
    """
    if not config.kl_coef:
        return None
    if config.lora_rank:
        return policy
    folder = run_dir / "reference"
    if first:
        model = copy.deepcopy(policy.model)
        policy.save(folder)
    else:
        model = load_policy(
            folder, dtype=policy.model.dtype, device=str(policy.model.device), packing=config.packing
        ).model
    return Policy(model.eval().requires_grad_(False), policy.tokenizer, policy.chat)


def _evaluate(
    config: GRPOConfig, policy: Policy, sampler: Sampler, tasks: Sequence[str], display: Display, when: str
) -> dict[str, Any]:
    """Sampled and greedy episodes on held-out tasks at K = k_max; nothing without tasks."""
    results: dict[str, Any] = {}
    for name, temperature, rollouts in (("sampled", config.temperature, config.eval_rollouts), ("greedy", 0.0, 1)):
        if tasks:
            with display.episodes(f"{name} evaluation {when}", len(tasks) * rollouts) as on_end:
                result = _held_out(config, policy, sampler, tasks, temperature, rollouts, on_end)
            results[name] = dataclasses.asdict(result)
    return results


def _held_out(
    config: GRPOConfig,
    policy: Policy,
    sampler: Sampler,
    tasks: Sequence[str],
    temperature: float,
    rollouts: int,
    on_end: Callable[[Trajectory], None],
) -> EvalResult:
    """Plays held-out tasks at K = k_max, with the same random numbers at every call."""
    played = evaluate_policy(
        policy,
        sampler,
        config.env,
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
        on_end=on_end,
    )
    return summarise(played)


def prepare(config: GRPOConfig) -> tuple[GRPOConfig, Path, bool]:
    """Makes or finds the run folder. Returns the settings to use, the folder, and whether it is a resumed run.

    Raises:
        ConfigError: The folder already holds a run, or, to resume, holds none.
    """
    if config.resume is not None:
        saved = config.resume / "config.json"
        if not saved.exists():
            raise ConfigError(f"no run to resume in {config.resume}: it has no config.json; give the run's folder")
        return GRPOConfig.from_json(saved.read_text()), config.resume, True
    run_dir = config.run_dir or _free_folder(Path("runs") / f"{config.env}-{config.wrapper}-seed{config.seed}")
    if (run_dir / "config.json").exists():
        raise ConfigError(
            f"{run_dir} already holds a run; continue it with --resume {run_dir}, or choose another --run-dir"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "versions.json").write_text(json.dumps(package_versions(), indent=2))
    write_whole(run_dir / "config.json", config.to_json())
    return config, run_dir, False


def _free_folder(name: Path) -> Path:
    """The folder `name`, or where that is taken the first free one of `name-2`, `name-3` and so on."""
    numbered = (name.with_name(f"{name.name}-{n}") for n in itertools.count(2))
    return next(folder for folder in itertools.chain([name], numbered) if not folder.exists())


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console()
    disable_progress_bar()  # transformers' own; ours are enough
    try:
        wanted = tyro.cli(GRPOConfig, args=words, default=preset(words), prog="python -m harness.grpo")
        config, run_dir, resume = prepare(wanted)
        display = Display(console)
        display.plan(config, run_dir, resume=resume)
        train(config, run_dir, display, resume=resume)
    except EHError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
