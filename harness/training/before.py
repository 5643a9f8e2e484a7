"""The evaluation before training. Runs that begin with the same clone and play alike share it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

import eh_gym
import envs
from harness.records.files import read_object, sha256, write_whole
from harness.records.versions import package_versions
from harness.settings.environment import GIVEN
from harness.terminal.display import Display
from harness.training.training_run import TrainingRun


def evaluate_before(run: TrainingRun, display: Display) -> dict[str, Any]:
    """Evaluates the policy, or takes what an earlier run has left beside the clone."""
    file = None
    if run.clone and not run.config.environment.env.startswith(GIVEN):  # whose code can't be compared
        file = run.clone / f"before-{_digest(run)}.json"
    known = run.ranks.from_first(read_object(file) if file and file.exists() else None)
    if known is not None:
        display.note(f"evaluation before training: taken from {file}, where an equal run left it")
        return known
    results = run.held_out.sampled_and_greedy(display, "before training")
    if file and run.ranks.first:
        write_whole(file, json.dumps(results, indent=2))
    return results


def _digest(run: TrainingRun) -> str:
    """Names all that the evaluation of a clone depends on."""
    config, device = run.config, run.learner.policy.model.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    decide = [config.environment, config.evaluation, config.model, config.rollout, config.sampling, config.seed]
    decide += [config.evaluation_horizon, config.slots_of_rank(run.ranks.size), run.ranks.size, run.held_out.tasks]
    folders = [Path(__file__).parents[1], *(Path(of) for package in (eh_gym, envs) for of in package.__path__)]
    code = sha256(*sorted(path for folder in folders for path in folder.rglob("*.py")))
    text = repr([*decide, config.optimizer.lora_rank, device.type, gpu, package_versions(), code])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
