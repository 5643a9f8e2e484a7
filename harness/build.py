"""Builds a training run from its settings: environments, policy, sampler, optimizer, controller and logs."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

import eh_gym
from eh_gym import HorizonController
from eh_gym.errors import MissingBackendError
from envs.actors import in_actors, shared_actors
from envs.mixed import mixed
from envs.runtime import cache_dir
from harness.evaluation.held_out import HeldOut
from harness.policy.head import Head
from harness.policy.lora import add_lora, check_peft, fold_lora, has_lora
from harness.policy.policy import Policy, load_policy
from harness.policy.ranks import Ranks
from harness.quickstart.cloning import cached_warm_start, is_pretrained, warm_start
from harness.quickstart.tiny import new_tiny_policy
from harness.rollout.batch_plan import BatchPlan
from harness.rollout.batches import Batches
from harness.rollout.environment import Environments, check_kinds, make_environment, parts_of, spec_of
from harness.rollout.groups import TaskSuccess
from harness.rollout.tasks import TaskStream
from harness.run.clock import Clock
from harness.run.display import Display
from harness.run.log import RunLog
from harness.run.run_folder import checkpoint_to_resume
from harness.run.runtime import compiles, pick_device, pick_dtype, set_threads
from harness.run.trackers import Trackers, require
from harness.sampling.make import make_sampler
from harness.sampling.weights import SampledWeights
from harness.settings.grpo import GRPOConfig
from harness.settings.reasoning import read_template_kwargs
from harness.training.checkpoint import CheckpointWriter, load_training_state, training_state, write_training_state
from harness.training.frozen import keep_frozen, load_frozen
from harness.training.learner import Learner
from harness.training.optimizer import make_optimizer
from harness.training.reference import reference_policy
from harness.types.sampler import Sampler
from harness.types.seeding import derive_seed

__all__ = ["Run", "build", "clone_expert", "environment", "load", "teacher"]


@dataclass
class Run:
    """A training run that is ready to go on; a context manager that closes what it opened.

    Attributes:
        config: The settings.
        folder: Everything that the run leaves is in this folder.
        ranks: The processes that train together.
        next_update: The index of the first update that is still to be done.
        batches: Plays the episodes.
        controller: Chooses the horizon; None for no limit.
        learner: Improves the policy.
        weights: What the sampler samples with.
        held_out: Evaluates the policy.
        evaluations: The results before and after training, if they are known already.
        clock: The seconds and tokens so far.
        log: The metrics and the episodes.
        checkpoints: Writes the checkpoints.
    """

    config: GRPOConfig
    folder: Path
    ranks: Ranks
    next_update: int
    batches: Batches
    controller: HorizonController | None
    learner: Learner
    weights: SampledWeights
    held_out: HeldOut
    evaluations: dict[str, Any]
    clock: Clock
    log: RunLog
    checkpoints: CheckpointWriter

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.batches.close()
        if error is not None:  # after its last update a run still evaluates
            self.weights.close()
        self.log.close()
        self.checkpoints.close()

    def save(self, next_update: int) -> None:
        """Begins to write a checkpoint. A run that is resumed from it continues with `next_update`.

        The first one is waited for, because a run with metrics and no checkpoint cannot be resumed.
        """
        model = self.learner.policy.model
        state = training_state(
            model=model, optimizer=self.learner.optimizer, sampled=self.weights.behind, ranks=self.ranks
        )
        extra = copy.deepcopy(
            {
                "next_update": next_update,
                "totals": self.clock.state_dict(),
                "controller": self.controller.state_dict() if self.controller is not None else None,
                "lengths": self.batches.state_dict(),
                "sampled_at": self.weights.updates,
                "evaluations": self.evaluations,
            }
        )

        def write(folder: Path, copied: Mapping[str, Any], ranks: Ranks) -> None:
            write_training_state(folder, copied, model=model, extra=extra, ranks=ranks)
            if ranks.first:
                self.learner.policy.tokenizer.save_pretrained(folder)

        self.checkpoints.save(next_update, state, write)
        if not next_update:
            self.checkpoints.wait()


def build(
    config: GRPOConfig, folder: Path, display: Display, *, resume: bool = False, ranks: Ranks | None = None
) -> Run:
    """Builds a run, from its newest checkpoint if it is resumed and has one.

    The tasks come first, because a setting that does not fit them is then refused before a model is loaded. The policy is made
    whole, and only then copied for the sampler and sharded over the ranks.

    Args:
        config: The settings.
        folder: An empty or new folder, or with `resume` the folder of a run that was stopped.
        display: Shows what happens.
        resume: Go on from the newest checkpoint, if there is one.
        ranks: The processes that train together; None for this one alone.

    Raises:
        ConfigError: A setting does not fit the environment, the model or the machine.
        MissingExtraError: A package that a setting needs is not installed.
        StateError: The checkpoint or the metrics are damaged.
    """
    set_threads(config.threads)
    require(config.trackers())
    if config.lora_rank:
        check_peft()
    ranks = ranks or Ranks()
    if ranks.sharded:
        config.check_ranks()
    tasks = _choose_tasks(config, ranks, display)
    device = ranks.device(pick_device(config.device))
    checkpoint = ranks.from_first(checkpoint_to_resume(folder) if resume and ranks.first else None)
    policy = _make_policy(
        config, tasks.env, folder, display, device=device, ranks=ranks, resumed=checkpoint is not None
    )
    tasks.env.close()
    trained = _prepare_training(config, policy, folder, display, device=device, ranks=ranks, checkpoint=checkpoint)
    sampler = _start_sampler(config, trained.weights, device=device, ranks=ranks)
    state = trained.state
    run = Run(
        config=config,
        folder=folder,
        ranks=ranks,
        next_update=state.get("next_update", 0),
        batches=_batches(config, tasks, policy, sampler, ranks=ranks),
        controller=tasks.controller,
        learner=trained.learner,
        weights=trained.weights,
        held_out=HeldOut(config, *tasks.held_out, trained.weights.policy, sampler, ranks),
        evaluations=state.get("evaluations", {}),
        clock=Clock(state.get("totals")),
        log=RunLog(
            folder,
            state.get("next_update", 0),
            episodes_every=config.log_episodes_every,
            selected=trained.learner.selected,
            silent=not ranks.first,
            trackers=Trackers(config.trackers(), config.log_project, config.public()),
        ),
        checkpoints=CheckpointWriter(
            folder / "checkpoints", keep=config.keep_checkpoints, ranks=ranks.apart(timeout_s=config.rank_timeout_s)
        ),
    )
    if state:
        run.batches.load_state_dict(state["lengths"])
        if run.controller is not None:
            run.controller.load_state_dict(state["controller"])
    return run


@dataclass(frozen=True, kw_only=True)
class _Tasks:
    """What is played, and under which horizon.

    Attributes:
        env_id: The id or spec from which `gym.make` makes an environment of the rollouts.
        env: One environment, for tasks and demonstrations.
        stream: The tasks of each update.
        controller: Chooses the horizon; None for no limit.
        held_out: The environments of the evaluations, and their tasks.
    """

    env_id: str | EnvSpec
    env: gym.Env[str, str]
    stream: TaskStream
    controller: HorizonController | None
    held_out: tuple[Environments, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """The policy in the state in which it is trained.

    Attributes:
        learner: Improves the policy.
        weights: What the sampler samples with.
        state: What the checkpoint says besides weights; empty for a run that begins.
    """

    learner: Learner
    weights: SampledWeights
    state: Mapping[str, Any]


def _choose_tasks(config: GRPOConfig, ranks: Ranks, display: Display) -> _Tasks:
    """Makes the parts that need no model, so that a wrong environment, split or horizon is refused within seconds."""
    env_id = environment(config, ranks)
    env = teacher(config, env_id)
    stream = TaskStream(
        parts_of(env),
        per_update=config.tasks_per_update,
        seed=derive_seed(config.seed, "tasks"),
        weights=list(config.environments().values()),
    )
    controller = config.controller(by_environment=len(config.environments()) > 1)
    if config.horizon_key and controller is not None:
        check_kinds(env, controller)
    held_out = HeldOut.choose(config, env_id)
    if len(held_out[1]) < config.eval_tasks:
        display.note(f"note: split {config.eval_split} has {len(held_out[1])} tasks; the evaluation plays all of them")
    return _Tasks(env_id=env_id, env=env, stream=stream, controller=controller, held_out=held_out)


def _make_policy(
    config: GRPOConfig,
    env: gym.Env[str, str],
    folder: Path,
    display: Display,
    *,
    device: str,
    ranks: Ranks,
    resumed: bool,
) -> Policy:
    """Makes the policy with which the run begins, whole on rank 0. If it is resumed, a checkpoint still has to fill it.

    The clone comes before the adapters that are trained: it is part of the frozen weights. These are kept after that, for the
    checkpoints, which have the adapters alone.
    """
    policy = load(config, env, device, ranks)
    for note in policy.chat.notes:
        display.note(f"note: {note}")
    if not resumed and config.warm_start.episodes and ranks.first:
        clone_expert(config, env, policy, device, display)
    if config.lora_rank and not has_lora(policy.model):
        add_lora(policy.model, config.lora_rank, seed=derive_seed(config.seed, "adapters") % 2**31)
    if config.lora_rank and ranks.first:
        (load_frozen if resumed else keep_frozen)(folder / "frozen.safetensors", policy.model)
    return policy


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

    The reference and the sampler's copy are taken from whole weights, so they come before the shards. The optimizer holds the
    shards, and the checkpoint fills the shards and the optimizer.
    """
    reference = None
    if config.kl_coef:
        reference = reference_policy(
            policy,
            folder / "reference",
            device,
            ranks,
            first=checkpoint is None,
            packing=config.packing,
            max_context=config.max_context,
        )
    weights = SampledWeights(
        policy,
        max_staleness=config.max_staleness,
        ranks=ranks,
        on_host=config.sampler != "transformers",
        gathers=config.sampler == "vllm",
    )
    if config.sampler == "transformers":
        weights.fill(device)  # if servers sample, the copy stays in the host memory of rank 0
    ranks.shard(policy, device)
    if compiles(config.compile, device, config.sampler):
        policy.compile_layers()
    model = policy.model
    optimizer = make_optimizer(
        model,
        learning_rate=config.learning_rate,
        betas=(0.9, config.adam_beta2),
        weight_decay=config.weight_decay,
    )
    state: Mapping[str, Any] = {}
    if checkpoint is not None:
        state = load_training_state(checkpoint, model=model, optimizer=optimizer, sampled=weights.behind, ranks=ranks)
        weights.restore(state["sampled_at"])
        display.note(f"resumed at update {state['next_update']} from {checkpoint}")
    learner = Learner(policy, optimizer, reference, config.loss_settings(), config.learning_rate_at, config.seed, ranks)
    return _Trained(learner=learner, weights=weights, state=state)


def _start_sampler(config: GRPOConfig, weights: SampledWeights, *, device: str, ranks: Ranks) -> Sampler:
    """Makes the sampler. It takes over the weights of this moment, so a checkpoint must have been restored before."""
    return weights.start(
        functools.partial(
            make_sampler,
            config,
            device=device,
            sends=ranks.first,
            adapters=config.lora_handover == "adapters",
            dtype=config.dtype,
            slots=_slot_count(config, ranks),
            sharers=ranks.size,
        )
    )


def _batches(config: GRPOConfig, tasks: _Tasks, policy: Policy, sampler: Sampler, *, ranks: Ranks) -> Batches:
    """Makes the object that plays the episodes of the updates."""
    plan = BatchPlan(
        stream=tasks.stream,
        group_size=config.group_size,
        updates=config.updates,
        seed=config.seed,
        dynamic_sampling=config.dynamic_sampling,
        success=TaskSuccess() if config.adaptive_groups or config.curriculum > 1 else None,
        adaptive_groups=config.adaptive_groups,
        curriculum=config.curriculum,
    )
    environments = Environments(
        env_id=tasks.env_id,
        args=config.environment_args(),
        slots=_slot_count(config, ranks),
        threads=config.env_threads,
        budget_hint=config.budget_hint,
    )
    return Batches(
        plan=plan,
        environments=environments,
        controller=tasks.controller,
        sampler=sampler,
        chat=policy.chat,
        rules=config.rules(),
        ranks=ranks,
        max_staleness=config.max_staleness,
    )


def load(config: GRPOConfig, env: gym.Env[str, str], device: str, ranks: Ranks) -> Policy:
    """Loads the policy on `device`. Under torchrun, rank 0 keeps it in host memory, and the others have it without weights."""
    policy = None
    if ranks.first:
        home = "cpu" if ranks.sharded else device
        limit, dtype = config.max_observation_tokens or None, pick_dtype(config.dtype, device)
        if config.model == "tiny":
            seed = derive_seed(config.seed, "weights") % 2**31
            policy = new_tiny_policy(
                env,
                seed=seed,
                max_observation_tokens=limit,
                max_action_tokens=config.max_action_tokens,
                packing=config.packing,
            )
            torch.nn.Module.to(policy.model, torch.device(home))
            for parameter in policy.model.parameters():  # not the rotary frequencies, which every engine has in float32
                parameter.data = parameter.data.to(dtype)
        else:
            policy = load_policy(
                config.model,
                dtype=dtype,
                device=home,
                max_observation_tokens=limit,
                packing=config.packing,
                template_kwargs=read_template_kwargs(config.chat_template_kwargs),
                reasoning_format=config.reasoning_format,
                strip_reasoning=config.reasoning == "strip",
                max_context=config.max_context,
            )
        Head.check(policy.model)
    policy = ranks.hand_out(policy)
    if config.gradient_checkpointing:
        policy.checkpoint_activations()
    return policy


def clone_expert(
    config: GRPOConfig, env: gym.Env[str, str], policy: Policy, device: str, display: Display, *, cached: bool = True
) -> dict[str, float]:
    """Clones the expert into the policy, which is on `device` meanwhile. Returns the metrics of the warm start.

    `cached` takes the result of an earlier run with the same settings, and keeps this one for later runs.

    With LoRA, a pretrained model learns in its adapters, so that the optimizer holds nothing else. They are then added to the
    frozen weights, and GRPO begins with new ones. So the KL term's reference, which is the frozen weights, includes the clone. A
    tiny model has random weights, from which adapters alone learn little, so all of its weights are trained.
    """
    home = policy.model.device
    torch.nn.Module.to(policy.model, torch.device(device))
    seed = config.warm_start.seed_for(config.seed)
    in_adapters = config.lora_rank > 0 and is_pretrained(policy)
    if in_adapters:
        add_lora(policy.model, config.lora_rank, seed=derive_seed(seed, "adapters") % 2**31)
    start = config.warm_start.for_model(policy.model.num_parameters(), lora=in_adapters)
    with display.warm_start((start.updates or start.max_batches) + start.polish_batches) as on_batch:
        how = functools.partial(cached_warm_start, cache_dir(), say=display.note) if cached else warm_start
        cloned = how(env, policy, config.warm_start, seed=seed, on_batch=on_batch)
    if in_adapters:
        fold_lora(policy.model, seed=derive_seed(config.seed, "adapters") % 2**31)
    torch.nn.Module.to(policy.model, home)
    display.warm_started(cloned)
    return cloned


def _slot_count(config: GRPOConfig, ranks: Ranks) -> int:
    """Returns the number of environments of this rank."""
    episodes = config.episodes_per_update
    return -(-min(config.slots or episodes, episodes) // ranks.size)


def environment(config: GRPOConfig, ranks: Ranks) -> str | EnvSpec:
    """Returns the id or spec from which `gym.make` makes an environment, on this machine or in Ray actors."""
    if config.env_workers == "local":
        return spec_of(config.env)
    actors = shared_actors(
        math.ceil(_slot_count(config, ranks) / config.ray_actor_slots),
        address=config.ray_address,
        cpus=config.ray_actor_cpus,
        timeout_s=config.ray_timeout_s,
    )
    there = {name: in_actors(name, actors) for name in config.environments()}
    return mixed(there) if len(there) > 1 else next(iter(there.values()))


def teacher(config: GRPOConfig, env_id: str | EnvSpec) -> gym.Env[str, str]:
    """Makes an environment for tasks and demonstrations. It is on this machine if possible, because that is faster."""
    try:
        env = make_environment(config.env, config.environment_args())
    except MissingBackendError:
        if config.env_workers == "local":
            raise
        env = make_environment(env_id, config.environment_args())
    return _hinted(env, config) if config.budget_hint else env


def _hinted(env: gym.Env[str, str], config: GRPOConfig) -> gym.Env[str, str]:
    """Adds the budget hint, for the tiny model's tokenizer and demonstrations. Each episode gets its own K, as K will move."""
    low = min(config.k0, config.k_max)
    seed = derive_seed(config.warm_start.seed_for(config.seed), "hints")
    draws = np.random.default_rng(seed).integers(low, config.k_max + 1, size=2000)
    controller = eh_gym.StagedHorizon({episode: int(k) for episode, k in enumerate(draws)})
    return eh_gym.BudgetHint(eh_gym.ElasticTimeLimit(env, controller, update_every=1), config.budget_hint)
