"""Flags about an agent program, which is trained or evaluated in place of an environment's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range

__all__ = ["AGENT_ENV", "AgentFlags"]

AGENT_ENV = "EH-Agent-v0"
"""The name of the environments that agent programs are."""


@dataclass(frozen=True)
class AgentFlags:
    """A program of your own that calls a model: docs/agents.md."""

    agent: str = ""
    """The agent, in place of --env: MODULE:FUNCTION, called as play(task, base_url), returns whether it succeeded; or a command,
    such as "node agent.js", which reads EH_TASK and OPENAI_BASE_URL, and prints that last. A step is a call of the model."""
    at_k: Literal["error", "stop"] = "error"
    """What a call after the K-th gets: an error (HTTP 410, horizon_reached), or a last message that says so (stop)."""
    agent_timeout_s: Annotated[float, Range(0, above=True)] = 300.0
    """The most seconds from the model's answer to the agent's next call, or to its end. A slower agent has failed."""

    def check_agent(self, env: str, *, model: str, tasks: Any, local: bool = True) -> None:
        """Raises ConfigError for settings that an agent program can't have, or that only such a program has."""
        if not self.agent:
            if isinstance(tasks, (str, Path)) and tasks:
                raise ConfigError(f"a file of tasks is for --agent, got --tasks {tasks} and no agent; leave it out")
            for name in ("at_k", "agent_timeout_s"):
                if getattr(self, name) != getattr(AgentFlags, name):
                    raise ConfigError(f"--{name.replace('_', '-')} is for --agent, and none is given; leave it out")
            return
        if env != AGENT_ENV:
            raise ConfigError(f"--agent is in place of --env, got --env {env}; leave one of them out")
        if not tasks:
            raise ConfigError(
                "--agent needs --tasks FILE, with a JSON object in each line: the tasks that the agent gets"
            )
        if model == "tiny":
            raise ConfigError(
                "--agent needs --model, a folder or hub id: the tiny model is made for one of our environments"
            )
        if not local:
            raise ConfigError("an agent must run on this machine, got --env-workers ray; leave it out")

    @property
    def agent_name(self) -> str:
        """`agent` as a part of a folder's name: "node agent.js" becomes node-agent-js."""
        return re.sub(r"\W+", "-", self.agent).strip("-")[:60]
