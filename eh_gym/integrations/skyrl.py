"""SkyRL: any text environment as a ``BaseTextEnv``, and a generator with an elastic ``max_turns``."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator, StepWiseOutput
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon
from eh_gym.integrations.folder import FolderHorizon
from eh_gym.rewards import earned, result_of, succeeds
from eh_gym.surrogates import escaped

__all__ = ["ElasticGymGenerator", "GymTextEnv"]

_turns: contextvars.ContextVar[list[bool]] = contextvars.ContextVar("turns")  # each rollout is an asyncio task
_training: contextvars.ContextVar[bool] = contextvars.ContextVar("training", default=True)


class GymTextEnv(BaseTextEnv):
    """Any Gymnasium environment with text actions, for `skyrl_gym.register`.

    A row of the data has the columns ``gym_id``, ``make_args`` (a dict, optional) and ``task_id`` or ``seed``. The
    environment's rules and first observation replace its prompt. An episode that is stopped earns its sum or 0,
    whichever is less: its last reward takes back what is above 0. With ``zero_reward_on_truncation: false`` in the row,
    it keeps its rewards.
    """

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        super().__init__()
        self._extras, self.max_turns = extras, extras["max_turns"]
        self._env: gym.Env[str, str] = gym.make(extras["gym_id"], **(extras.get("make_args") or {}))
        self._keep = not extras.get("zero_reward_on_truncation", True)
        self._metrics: dict[str, Any] = {}
        self._earned = 0.0

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Starts an episode. Returns its first messages and its ``task_id``."""
        task_id = self._extras.get("task_id")
        options = None if task_id is None else {"task_id": task_id}
        observation, info = self._env.reset(seed=self._extras.get("seed"), options=options)
        rules = [{"role": "system", "content": info["system_prompt"]}] if info.get("system_prompt") else []
        return [*rules, {"role": "user", "content": escaped(str(observation))}], {"task_id": info.get("task_id")}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Sends the model's text to the environment."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        self.turns += 1
        failed = "environment_error" in info
        cut = not terminated and not failed and (truncated or self.turns >= self.max_turns)
        before, reward, done = self._earned, float(reward), bool(terminated or cut or failed)
        total = self._earned = before + reward
        ended = bool(terminated) and not failed
        kept, won = result_of(total, ended=ended, verdict=info.get("success"), keep=self._keep)
        if done and kept != total:
            reward = kept - before
        marks = {"success": won, "truncated": cut, "environment_error": failed}
        self._metrics = {"turns": self.turns, **{name: float(mark) for name, mark in marks.items()}}
        messages = [] if done else [{"role": "user", "content": escaped(str(observation))}]
        return BaseTextEnvStepOutput(observations=messages, reward=reward, done=done, metadata={})

    def get_metrics(self) -> dict[str, Any]:
        """Turns, and as 0 or 1: success, truncated, environment_error."""
        return self._metrics

    def close(self) -> None:
        """Closes the Gymnasium environment."""
        self._env.close()


class ElasticGymGenerator(SkyRLGymGenerator):
    """SkyRL's generator whose training rollouts have the controller's K as ``max_turns``.

    A controller can choose the K of a rollout by the columns of its row, such as ``task_id``.

    A step is a turn of the model. A rollout is truncated if its environment says so in `get_metrics` (``truncated``, as
    `GymTextEnv` does), if its tokens ran out before the environment was done, or if it took K turns without a success.
    If their sum is above 0, its rewards are then 0. Evaluation plays under K and records nothing. A rollout with an
    ``environment_error`` is not recorded.

    Args:
        controller: Decides K.
        folder: Where the state and the log are kept; see `FolderHorizon`. A later run continues from it.
        update_every: The number of rollouts between two updates of K, such as those of one training batch.
        success: Tells whether a rollout is a success from the sum of its rewards. By default ``success`` in
            `get_metrics` does, or without it a sum of at least 1.
        zero_reward_on_truncation: False leaves the rewards of truncated rollouts as they are.
        **skyrl: The arguments of `SkyRLGymGenerator`.
    """

    def __init__(
        self,
        controller: HorizonController,
        *,
        folder: str | Path,
        update_every: int,
        success: Callable[[float], bool] | None = None,
        zero_reward_on_truncation: bool = True,
        **skyrl: Any,
    ) -> None:
        super().__init__(**skyrl)
        self._horizon, self._success = FolderHorizon(folder, controller, update_every), success
        self._zero = zero_reward_on_truncation

    async def generate(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """One generation. Its metrics have the K at its start as ``horizon/k``."""
        batch, k = input_batch.get("batch_metadata"), self._horizon.horizon
        _training.set(batch is None or batch.training_phase == "train")
        output = await super().generate(input_batch, *args, **kwargs)
        output["rollout_metrics"]["horizon/k"] = k
        return output

    def _setup_env_extras(self, env_class: str, env_extras: dict[str, Any], *rest: Any) -> dict[str, Any]:
        _turns.set([])
        k = episode_horizon(self._horizon, env_extras, None)
        limits = {"max_turns": k, "zero_reward_on_truncation": self._zero}
        return {**super()._setup_env_extras(env_class, env_extras, *rest), **limits}

    def get_obs_ids_from_obs(self, new_obs: Any, is_done: bool) -> Any:
        """SkyRL calls this once a turn."""
        _turns.get().append(is_done)
        return super().get_obs_ids_from_obs(new_obs, is_done)

    def _post_process_agent_loop_output(self, output: Any, env_extras: dict[str, Any], trajectory_id: Any) -> Any:
        output = super()._post_process_agent_loop_output(output, env_extras, trajectory_id)
        steps = output.step_outputs if isinstance(output, StepWiseOutput) else [output]
        turns, k, metrics = _turns.get(), env_extras["max_turns"], steps[-1].env_metrics
        rewards = [step.reward if isinstance(step.reward, list) else [step.reward] for step in steps]
        total = sum(map(sum, rewards))
        won = metrics.get("success", succeeds(total)) if self._success is None else self._success(total)
        cut = not any(turns) or bool(metrics.get("truncated", not won and len(turns) >= k))
        won = result_of(total, ended=not cut, verdict=won).success
        zero = cut and self._zero and earned(total, ended=False) > -1e-9  # taking back may round
        for step in steps if zero else []:  # each one: step-wise advantages take the last one's alone
            step.reward = [0.0] * len(step.reward) if isinstance(step.reward, list) else 0.0
        if _training.get() and not metrics.get("environment_error"):
            length, task = max(1, min(len(turns), k)), env_extras.get("task_id")
            named = None if task is None else str(task)
            self._horizon.record(EpisodeOutcome(length, k, won, cut, named, info=env_extras))
        return output
