"""verifiers (prime-rl): an elastic ``max_turns`` for any of its environments."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import verifiers.v1 as vf

from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon
from eh_gym.integrations.folder import FolderHorizon
from eh_gym.rewards import earned, result_of

__all__ = ["elastic"]


def elastic(
    env_class: type[vf.Env],
    controller: HorizonController,
    *,
    folder: str | Path,
    update_every: int = 64,
    seat: str = "agent",
    success: Callable[[vf.Trace], bool] | None = None,
    zero_reward_on_truncation: bool = True,
) -> type[vf.Env]:
    """Subclasses an environment of verifiers so that each episode's ``max_turns`` is the controller's K.

    A step is a turn of the model. A task's name is its ``task_id``. An episode that verifiers stopped
    (``trace.is_truncated``) earns its reward or 0, whichever is less (Elastic Horizon paper, Sec. 3.2). A trace with an
    error is not recorded. Each recorded trace gets the metrics ``horizon_k`` and ``truncated``.

    Args:
        env_class: The environment, such as `verifiers.v1.SingleAgentEnv`, which plays any taskset.
        controller: Decides K.
        folder: Where K is kept. Worker processes with the same folder share it; see `FolderHorizon`.
        update_every: The number of episodes, of all processes, between two updates of K.
        seat: The agent that gets K. Each of its traces counts as an episode.
        success: Tells whether an episode that was not stopped is a success. By default the metric ``success`` does, or
            without it a reward of at least 1.
        zero_reward_on_truncation: False leaves the rewards of truncated episodes as they are.

    Returns:
        A class to name in the ``__all__`` of a verifiers module.
    """

    class Elastic(env_class):
        async def start(self) -> None:
            self._horizon = FolderHorizon(folder, controller, update_every)
            await super().start()

        async def stop(self) -> None:
            await super().stop()
            self._horizon.close()

        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            agent, k = getattr(agents, seat), episode_horizon(self._horizon, {"task_id": task.data.name}, None)
            agent.limits = dataclasses.replace(agent.limits, max_turns=k)
            agent.config = agent.config.model_copy(update={"max_turns": k})  # every trace has a copy of it
            await super().run(task, agents)

        async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
            await super().finalize(task, episode)
            for trace in episode.traces:
                if trace.agent.name != seat or not trace.ok:
                    continue
                k, cut = trace.agent.config.max_turns, trace.is_truncated
                verdict = trace.metrics.get("success") if success is None else success(trace)
                won = result_of(trace.reward, ended=not cut, verdict=verdict).success
                if earned(trace.reward, ended=not cut, keep=not zero_reward_on_truncation) != trace.reward:
                    trace.rewards = {n: r and r.model_copy(update={"score": 0.0}) for n, r in trace.rewards.items()}
                trace.record_metrics({"horizon_k": k, "truncated": cut})
                length = max(1, min(trace.num_turns, k))
                outcome = EpisodeOutcome(length, k, won, cut, task.data.name, info={"task_id": task.data.name})
                self._horizon.record(outcome)

    return Elastic
