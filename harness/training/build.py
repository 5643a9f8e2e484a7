"""Builds a training run from its settings, in steps whose order matters."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym import ElasticHorizon, HorizonController, KeyedHorizon
from eh_gym.errors import ConfigError
from harness.clone.clones import clone_expert
from harness.evaluation.held_out import HeldOutEvaluator
from harness.machine.ranks import Ranks
from harness.machine.runtime import compiles, pick_device
from harness.model.attention import choose_flash_attention
from harness.model.lora import add_lora
from harness.model.policy import Policy
from harness.records.clock import Clock
from harness.records.metrics import MetricsLog
from harness.records.run_folder import checkpoint_to_resume
from harness.rollout.batches import Batches
from harness.rollout.environment import Environments, Given, check_kinds, environment_spec, parts_of, task_environment
from harness.rollout.outcomes import check_controller
from harness.rollout.tasks import BatchPlan, TaskStream
from harness.sampling.agreement import check_agreement
from harness.sampling.make import check_engine, make_sampler, preload
from harness.sampling.weights import SampledWeights
from harness.settings.grpo import GRPOConfig
from harness.settings.horizon import new_controller
from harness.terminal.display import Display
from harness.terminal.interrupts import Interrupts
from harness.training.checkpoint import keep_frozen, load_frozen, load_training_state
from harness.training.first_policy import load
from harness.training.training_run import TrainingRun
from harness.types.sampler import Sampler
from harness.types.seeding import derive_seed
from harness.update.learner import Learner
from harness.update.optimizer import HostMoments, make_optimizer
from harness.update.reference import reference_policy


def build(
    config: GRPOConfig,
    folder: Path,
    display: Display,
    *,
    resume: bool,
    ranks: Ranks,
    given: Given,
    interrupts: Interrupts,
) -> TrainingRun:
    """Builds a run, from its newest checkpoint if it is resumed and has one.

    The tasks come first, so that a setting that does not fit them is refused before a model is loaded.
    `harness.training.loop.train_loop` explains the arguments.
    """
    if not config.model.model:
        raise ConfigError("no model is named; give --model FOLDER or a hub id, or --recipe quickstart")
    if ranks.sharded:
        config.check_ranks()
    check_engine(config.sampling, pick_device(config.model.device))
    tasks = _choose_tasks(config, given, ranks, display)
    device = ranks.device(pick_device(config.model.device))
    checkpoint = ranks.from_first(checkpoint_to_resume(folder) if resume and ranks.first else None)
    preload(config.sampling)
    policy, clone = _make_policy(
        config, tasks.env, folder, display, device=device, ranks=ranks, resumed=bool(checkpoint)
    )
    tasks.env.close()
    trained = _prepare_training(config, policy, folder, display, device=device, ranks=ranks, checkpoint=checkpoint)
    state, next_update = trained.state, trained.state.get("next_update", 0)
    make = functools.partial(
        make_sampler,
        config.sampling,
        device=device,
        sends=ranks.first,
        dtype=config.model.dtype,
        slots=config.slots_of_rank(ranks.size),
        sharers=ranks.size,
    )
    sampler = trained.weights.start(make, next_update)  # with the checkpoint's weights
    run = TrainingRun(
        config=config,
        folder=folder,
        ranks=ranks,
        next_update=next_update,
        batches=_batches(config, tasks, policy, sampler, ranks=ranks, interrupts=interrupts),
        controller=tasks.controller,
        learner=trained.learner,
        weights=trained.weights,
        held_out=HeldOutEvaluator(config, *tasks.held_out, trained.weights.policy, sampler, ranks),
        evaluations=state.get("evaluations", {}),
        clock=Clock(state.get("totals")),
        log=MetricsLog(folder, next_update, config.run.tracker_names(), config.public()) if ranks.first else None,
        interrupts=interrupts,
        clone=clone,
        saved=state.get("next_update"),
    )
    if state and run.controller is not None:
        run.controller.load_state_dict(state["controller"])
    return run


@dataclass(frozen=True, kw_only=True)
class _Tasks:
    """What is played, and under which horizon. `env` is one environment, for tasks and demonstrations."""

    env_id: str | EnvSpec
    env: gym.Env[str, str]
    stream: TaskStream
    controller: HorizonController | None
    held_out: tuple[Environments, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """The policy, ready to be trained. `state` is the run's own state in the checkpoint, empty for a new run."""

    learner: Learner
    weights: SampledWeights
    state: Mapping[str, Any]


def _choose_tasks(config: GRPOConfig, given: Given, ranks: Ranks, display: Display) -> _Tasks:
    played = config.environment
    slots, temperature = config.slots_of_rank(ranks.size), config.rollout.temperature
    env_id = given.env or environment_spec(played, slots=slots, temperature=temperature)
    env = task_environment(played, env_id)
    stream = TaskStream(
        parts_of(env),
        per_update=config.tasks_per_update,
        seed=derive_seed(config.seed, "tasks"),
        weights=list(played.environments().values()),
    )
    controller = given.controller or _controller(config)
    if controller is not None:
        check_controller(controller)
    if config.horizon_key and controller is not None:
        check_kinds(env, controller)
    held_out = HeldOutEvaluator.choose(config, env_id, ranks)
    if len(held_out[1]) < config.evaluation.tasks:
        display.note(
            f"note: split {config.evaluation.split} has {len(held_out[1])} tasks; the evaluation plays all of them"
        )
    return _Tasks(env_id=env_id, env=env, stream=stream, controller=controller, held_out=held_out)


def _controller(config: GRPOConfig) -> HorizonController | None:
    """The run's own controller. An elastic horizon keeps a K for each environment if there are several."""
    several = len(config.environment.environments()) > 1 and isinstance(config.horizon, ElasticHorizon)
    key = config.horizon_key or ("environment" if several else "")
    make = functools.partial(new_controller, config.horizon)
    return KeyedHorizon(make, key) if key and config.horizon is not None else make()  # type: ignore[arg-type]


def _make_policy(
    config: GRPOConfig,
    env: gym.Env[str, str],
    folder: Path,
    display: Display,
    *,
    device: str,
    ranks: Ranks,
    resumed: bool,
) -> tuple[Policy, Path | None]:
    """Makes the policy with which the run begins, whole on rank 0, and returns it with the folder of its clone on rank
    0. If the run is resumed, a checkpoint fills it later.

    The clone is part of the frozen weights, so it comes before the adapters that are trained. The frozen weights are
    kept in the folder, because checkpoints have the adapters alone.
    """
    policy = load(config, env, device, ranks, display)
    untested = check_agreement(policy.model) if config.sampling.runs_policy else ""
    kernel = ""
    if policy.packs:
        kernel = choose_flash_attention(
            device, policy.model.config.get_text_config(), lambda what: display.note(f"note: {what}")
        )
    for note in (*policy.chat.notes, *filter(None, [untested, kernel])):
        display.note(f"note: {note}")
    clone = None
    if config.warm_start.episodes and not resumed:
        clone = clone_expert(config, env, policy, device, display, folder) if ranks.first else None
        del policy  # free its memory before the clone is loaded
        policy = load(config, env, device, ranks, display, clone=clone)
    if config.optimizer.lora_rank:
        add_lora(policy.model, config.optimizer.lora_rank, seed=derive_seed(config.seed, "adapters") % 2**31)
        if ranks.first:
            (load_frozen if resumed else keep_frozen)(folder / "frozen.safetensors", policy.model)
    return policy, clone


def _prepare_training(
    config: GRPOConfig,
    policy: Policy,
    folder: Path,
    display: Display,
    *,
    device: str,
    ranks: Ranks,
    checkpoint: Path | None,
) -> _Trained:
    """Copies, shards and restores the policy, in this order.

    The reference and the sampler's copy need whole weights, so they come before the shards. The optimizer holds the
    shards, and the checkpoint fills both.
    """
    reference = None
    if config.loss.kl_coef:
        reference = reference_policy(
            policy,
            folder / "reference",
            device,
            ranks,
            first=checkpoint is None,
            packing=config.optimizer.packing,
        )
    weights = SampledWeights(
        policy,
        ahead=config.max_staleness > 0,
        ranks=ranks,
        on_host=not config.sampling.runs_policy,
        gathers=config.sampling.shares_gpu,
    )
    if config.sampling.runs_policy:
        weights.fill(device)  # if servers sample, the copy stays in the host memory of rank 0
    ranks.shard(policy, device)
    if compiles(config.optimizer.compile, device, sampled=config.sampling.runs_policy):
        policy.compile_layers()
    model = policy.model
    optimizer = make_optimizer(model, config.optimizer)
    state: Mapping[str, Any] = {}
    if checkpoint is not None:
        state = load_training_state(checkpoint, model=model, optimizer=optimizer, ranks=ranks)
        weights.copy()
        display.note(f"resumed at update {state['next_update']} from {checkpoint}")
    learner = Learner(
        policy,
        optimizer,
        reference,
        config.loss,
        config.optimizer,
        temperature=config.rollout.temperature,
        updates=config.updates,
        seed=config.seed,
        ranks=ranks,
        moments=HostMoments(optimizer) if config.optimizer.offload_optimizer else None,
    )
    return _Trained(learner=learner, weights=weights, state=state)


def _batches(
    config: GRPOConfig, tasks: _Tasks, policy: Policy, sampler: Sampler, *, ranks: Ranks, interrupts: Interrupts
) -> Batches:
    plan = BatchPlan(stream=tasks.stream, group_size=config.group_size, updates=config.updates, seed=config.seed)
    return Batches(
        plan=plan,
        environments=Environments.of(config.environment, tasks.env_id, config.slots_of_rank(ranks.size)),
        controller=tasks.controller,
        sampler=sampler,
        chat=policy.chat,
        settings=config.rollout,
        ranks=ranks,
        max_staleness=config.max_staleness,
        interrupts=interrupts,
    )
