#!/usr/bin/env python
"""TRL's GRPOTrainer on EH-Cabinet and EH-BFCL, with K from an ElasticHorizon.

These commands draw the figures, from K0 = 10 and from K0 = 50 (one CPU core, about 5 minutes each, with the warm
start):

    python examples/trl_grpo.py --envs EH-Cabinet-v0 --seeds 2 --out examples/figures/trl-cabinet.svg
    python examples/trl_grpo.py --envs EH-BFCL-v0 --seeds 1 --out examples/figures/trl-bfcl.svg

TRL plays the episodes through its public `rollout_func`, which is `ElasticRollout` below. examples/README.md says how
it works, and why TRL's `environment_factory` can't express these episodes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from datasets import Dataset
from drawing import Log, Logs, Runs, draw_k_and_success, train_all
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import eh_gym
from eh_gym import ElasticHorizon, HorizonController
from harness.clone.cloning import warm_start
from harness.clone.tiny import new_tiny_policy
from harness.model.policy import Policy, load_policy
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.settings.grpo import from_recipe
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory


@dataclass(frozen=True)
class Settings(Runs):
    """The settings of the runs. All others are those of a recipe: quickstart, bfcl, or paper for a model that is not
    tiny.
    """

    envs: tuple[str, ...] = ("EH-Cabinet-v0", "EH-BFCL-v0")
    """The environments to train on, one after the other."""
    model: str = "tiny"
    """tiny (a small new model), a Hugging Face folder, or a hub id."""
    updates: int = 0
    """The number of GRPO updates; 0 for the quick start's."""
    warm_start: bool = True
    """Clone the environment's expert first. Without this a new tiny model never succeeds."""
    mask_truncated: bool = False
    """Leave truncated episodes out of the loss (they still count in their group's mean). The paper keeps them, with
    reward 0."""


class ElasticRollout:
    """TRL's `rollout_func`: plays the episodes of one generation under the controller's K, in parallel slots.

    TRL passes only the prompts of the rows, so a row's prompt is the id of its task. A prompt comes once for each
    episode of its group.
    """

    def __init__(self, env_id: str, policy: Policy, controller: HorizonController, **about: Any):
        self.policy, self.controller, self.about = policy, controller, about
        self.envs = eh_gym.make_vec(env_id, about["slots"], controller, record=False, max_workers=8, split="train")
        # One position is reserved for the token that marks a truncated episode.
        positions = policy.model.config.max_position_embeddings
        self.sampler = TransformersSampler(policy.model, max_context=positions - 1)
        self.batches = 0

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Plays one generation; returns a list for each field of TRL and of the reward, in the order of the prompts."""
        training = self.policy.model.training
        self.sampler.weights_changed()
        group_size = trainer.num_generations if training else trainer.num_generations_eval
        requests = [
            EpisodeRequest(task_id, i // group_size, derive_seed(self.about["seed"], "trl", self.batches, i))
            for i, task_id in enumerate(prompts)
        ]
        played = rollout(
            self.envs,
            self.sampler,
            self.policy.chat,
            requests,
            Rollout(
                rollout="lockstep", temperature=trainer.temperature, max_action_tokens=self.about["max_action_tokens"]
            ),
        )
        self.policy.model.train(training)  # sampling has set evaluation mode, in which TRL would count the loss
        self.batches += 1
        if training:
            for t in played:
                if t.end != "environment-error":
                    self.controller.record(t.outcome())
        columns = [self._columns(t) for t in played]
        return {name: [column[name] for column in columns] for name in columns[0]}

    def _columns(self, t: Trajectory) -> dict[str, Any]:
        """Returns an episode as TRL takes it.

        TRL uses `prompt_ids`, `completion_ids`, `logprobs` and `env_mask`. All other keys go to the reward.
        """
        start = t.action_mask.index(1) if 1 in t.action_mask else len(t.ids)
        ids, mask, logprobs = t.ids[start:], t.action_mask[start:], t.logprobs[start:]
        # TRL counts a completion as complete if its last token ends a sequence. So an ended episode must end in that
        # token, which may have been cut off its last action. A truncated episode gets the first token of the
        # environment's unread answer.
        end, more = self.policy.chat.reply_ids("")[-1], self.policy.chat.observation_ids("", stopped=True)[0]
        last = more if t.truncated else end
        if not ids or (ids[-1] != last):
            ids, mask, logprobs = [*ids, last], [*mask, 0], [*logprobs, 0.0]
        return {
            "prompt_ids": t.ids[:start],
            "completion_ids": ids,
            "logprobs": logprobs,
            "env_mask": mask,
            "verdict": None if t.end == "environment-error" else t.reward,  # TRL leaves None out of the group's mean
            "truncated": t.truncated,
            "length": t.length,
            "horizon": t.horizon,
        }


def reward(
    verdict: list[float | None], truncated: list[bool], length: list[int], horizon: list[int], **trl: Any
) -> list[float | None]:
    """Returns the environment's verdict as TRL's reward, and logs success, truncation, length and K of the episodes."""
    known = [v for v in verdict if v is not None]
    about = {"success": known or [float("nan")], "truncated": truncated, "length_mean": length, "k": horizon}
    for name, values in about.items():
        trl["log_metric"](f"rollout/{name}", float(np.mean(values)))
    return verdict


class HorizonCallback(TrainerCallback):
    """Moves K once per generation, after its first optimizer step, and logs the controller's metrics."""

    def __init__(self, played: ElasticRollout):
        self.played = played
        self.updates = 0
        self.metrics: dict[str, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Updates the controller once per generation, which several optimizer steps may share."""
        if self.updates < self.played.batches:
            self.updates += 1
            self.metrics = self.played.controller.update()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Adds the controller's metrics to this row of the log, and to the row that later callbacks see."""
        for row in (logs, state.log_history[-1]):
            if row is not None and "rollout/k" in row:
                row.update(self.metrics)


def train(settings: Settings, env_id: str, k0: int, seed: int) -> Log:
    """Trains one run; returns TRL's log, with one row per update."""
    torch.set_num_threads(1)
    quick = from_recipe("paper" if settings.model != "tiny" else "bfcl" if "BFCL" in env_id else "quickstart")
    env = gym.make(env_id, split="train")
    if settings.model == "tiny":
        policy = new_tiny_policy(env, seed=derive_seed(seed, "weights") % 2**31, settings=quick.model)
    else:
        policy = load_policy(settings.model, quick.model)
    if settings.warm_start and quick.warm_start.episodes:
        longer = {} if "BFCL" in env_id else {"max_optimal_steps": 9}  # than in the quick start, as in docs/trainers.md
        warm_start(env, policy, replace(quick.warm_start, **longer), seed=seed)
    updates, episodes = settings.updates or quick.updates, settings.tasks_per_update * settings.group_size
    task_ids = env.unwrapped.task_ids
    drawn = np.random.default_rng(seed).integers(len(task_ids), size=updates * settings.tasks_per_update)
    env.close()

    controller = ElasticHorizon(k0=k0, min_successes=settings.min_successes)
    play = ElasticRollout(
        env_id,
        policy,
        controller,
        slots=episodes,
        seed=seed,
        max_action_tokens=quick.rollout.max_action_tokens,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=reward,
            processing_class=policy.tokenizer,
            train_dataset=Dataset.from_dict({"prompt": [task_ids[int(i)] for i in drawn]}),
            rollout_func=play,
            callbacks=[HorizonCallback(play)],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=updates,
                num_generations=settings.group_size,
                per_device_train_batch_size=episodes,
                mask_truncated_completions=settings.mask_truncated,
                learning_rate=quick.optimizer.learning_rate,
                warmup_steps=quick.optimizer.warmup_updates,
                adam_beta2=quick.optimizer.adam_beta2,
                weight_decay=quick.optimizer.weight_decay,
                temperature=quick.rollout.temperature,
                seed=seed,
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                gradient_checkpointing=None,  # off, without the warning that transformers 5.23 has for False
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    play.envs.close()
    return [row for row in trainer.state.log_history if "rollout/k" in row]


def main(argv: Sequence[str] | None = None) -> Logs:
    """Trains every run, prints how each ended, and draws them."""
    settings = tyro.cli(Settings, args=argv)
    logs = train_all(partial(train, settings), settings.envs, settings.k0, settings.seeds)
    if settings.out is not None:
        draw_k_and_success(
            logs, "TRL's GRPOTrainer with an elastic horizon: mean and range of the seeds", "rollout/k", settings.out
        )
    return logs


if __name__ == "__main__":
    main(sys.argv[1:])
