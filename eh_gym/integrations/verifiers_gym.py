"""Any Gymnasium environment with text actions as a taskset and an environment of verifiers."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium as gym
import httpx
import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.dialects.chat import message_to_wire

from eh_gym.surrogates import escaped

__all__ = ["ChatHarness", "GymConfig", "GymEnv", "GymTask", "GymTaskset"]


class GymData(vf.TaskData):
    """A task: its id, or a seed that draws one."""

    task_id: str | None = None
    seed: int | None = None


class GymConfig(vf.TasksetConfig):
    """The environment, under ``--env.taskset``."""

    gym_id: str = "EH-Cabinet-v0"
    """The id that `gymnasium.make` takes."""
    make_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments for `gymnasium.make`."""
    task_ids: list[str] = Field(default_factory=list)
    """The tasks. By default there is one for each seed, without end."""
    every_task: bool = False
    """Whether to play all tasks that the environment lists in its `task_ids`."""


class GymTask(vf.Task[GymData]):
    """A task of a Gymnasium environment."""


class GymTaskset(vf.Taskset[GymTask, GymConfig]):
    """The tasks of any Gymnasium environment with text actions and observations."""

    @property
    def INFINITE(self) -> bool:  # verifiers' name
        """Whether the tasks are seeds."""
        return not (self.config.task_ids or self.config.every_task)

    def load(self) -> Iterator[GymTask]:
        """The tasks of the configuration, all of the environment, or one for each seed from 0 on."""
        names: Iterable[str] = self.config.task_ids
        if self.config.every_task and not names:
            with gym.make(self.config.gym_id, **self.config.make_args) as env:
                names = env.unwrapped.task_ids  # type: ignore[attr-defined]
        given = (GymData(name=name, task_id=name) for name in names)
        seeds = (GymData(name=f"{self.config.gym_id}#{seed}", seed=seed) for seed in itertools.count())
        return (GymTask(data, self.config.task) for data in (seeds if self.INFINITE else given))


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """Asks the model for one message. It starts no program, so a turn costs no process."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    def __init__(self, config: vf.HarnessConfig) -> None:
        super().__init__(config)
        self._http = httpx.AsyncClient(timeout=None)  # verifiers has time limits of its own

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # type: ignore[no-untyped-def]
        """One completion of the conversation so far."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages += [message_to_wire(message) for message in prompt]
        body, token = {"model": ctx.model, "messages": messages}, {"Authorization": f"Bearer {secret}"}
        answer = await self._http.post(f"{endpoint}/chat/completions", json=body, headers=token)
        return vf.ProgramResult(
            exit_code=int(answer.is_error), stdout="", stderr=answer.text if answer.is_error else ""
        )


class GymEnvConfig(vf.EnvConfig):
    """One seat, without a sandbox."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class GymEnv(vf.Env[GymEnvConfig]):
    """Plays a `GymTaskset`: each reply of the model is an action, each observation the user's next message."""

    def __init__(self, config: GymEnvConfig) -> None:
        super().__init__(config)
        self._idle: list[gym.Env[str, str]] = []

    async def run(self, task: GymTask, agents: vf.Agents) -> None:
        """One episode."""
        config = self.taskset.config
        env = self._idle.pop() if self._idle else await asyncio.to_thread(gym.make, config.gym_id, **config.make_args)
        try:
            await self._play(env, task, agents)
        except BaseException:  # also if cancelled: the next episode must not continue this one
            await asyncio.to_thread(env.close)
            raise
        self._idle.append(env)

    async def _play(self, env: gym.Env[str, str], task: GymTask, agents: vf.Agents) -> None:
        options = None if task.data.task_id is None else {"task_id": task.data.task_id}
        observation, info = await asyncio.to_thread(env.reset, seed=task.data.seed, options=options)
        total, ended = 0.0, False
        async with agents.agent.interaction(task.with_system_prompt(info.get("system_prompt", ""))) as interaction:
            while not ended:
                segment = await interaction.turn(escaped(str(observation)))
                if segment.terminated:
                    break
                observation, reward, terminated, truncated, info = await asyncio.to_thread(env.step, segment.last_reply)
                if "environment_error" in info:
                    raise RuntimeError(info["environment_error"])
                total, ended = total + float(reward), terminated or truncated
                if truncated and not terminated:  # a limit also truncates an episode that ends on its last step
                    interaction.trace.stop("max_turns")
                if terminated and "success" in info:
                    interaction.trace.record_metric("success", info["success"])
        interaction.trace.record_reward("return", total)

    async def stop(self) -> None:
        """Closes the environments."""
        while self._idle:
            await asyncio.to_thread(self._idle.pop().close)
