"""The environment: which one or which agent program, with which arguments, and where its processes live."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from eh_gym.answers import MOST_REWARD
from eh_gym.errors import ConfigError
from eh_gym.ranges import Range
from envs.make import absolute, has_splits
from envs.mixed import read_environments
from harness.settings.section import FIRST, Changes, Section

AGENT_ENV = "EH-Agent-v0"
"""The name of the environments that agent programs are."""

GIVEN = "given:"
"""What begins the name of an environment or a controller that is an object of a Python program; see `harness.train`."""


@dataclass(frozen=True)
class Environment(Section):
    """Which environment the agent acts in, or which program of yours is the agent (docs/agents.md), and where it
    runs.
    """

    changes = Changes.RESULT

    env: Annotated[str, FIRST] = "EH-Cabinet-v0"
    """The environment: an id of gymnasium, MODULE:ID, or a class of yours, FILE.py:CLASS. Several, such as
    EH-Cabinet-v0:2,EH-CabinetLocked-v0:1, share the updates' tasks in this ratio."""
    env_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of gym.make, a JSON object such as '{"categories": ["base"]}'. An object under an id is for that
    environment alone."""
    split: Annotated[str, FIRST] = ""
    """The split of the tasks. Empty takes the environment's own default; harness.evaluate then takes test for a model
    and all for the others, and for AppWorld test_normal and dev."""
    tasks: Annotated[int | Path | None, Range(1), Changes.EPISODES, FIRST] = None
    """With --agent: the file of its tasks, a JSON object a line; "id" and "split" (default train) are optional. For
    harness.evaluate also the number of tasks, in the order of the split; by default all of a finite split, and 128 of a
    generated one."""
    success_threshold: Annotated[float, Range(-MOST_REWARD, MOST_REWARD)] = 1.0
    """An episode without a verdict (info["success"]) is a success if its rewards add up to at least this."""
    agent: Annotated[str, FIRST] = ""
    """The agent, in place of --env: MODULE:FUNCTION, called as play(task, base_url), returns its reward, or True or
    False; or a command, such as "node agent.js", which reads EH_TASK and OPENAI_BASE_URL, and prints that last. A step
    is a call of the model."""
    at_k: Literal["error", "stop"] = "error"
    """What an agent's call after the K-th gets: an error (HTTP 404, horizon_reached), or a last message that says so
    (stop)."""
    agent_sampling: Literal["auto", "run", "strict"] = "auto"
    """An agent's own temperature, form of answers and the like: run ignores them, strict refuses them, auto passes them
    to hosted models only."""
    agent_upstream: Annotated[str, Changes.MACHINE] = ""
    """The endpoint, https://HOST/v1, for an agent's other requests, such as embeddings, with the agent's own key."""
    agent_timeout_s: Annotated[float, Range(0, above=True)] = 300.0
    """The most seconds from the model's answer to the agent's next call or its end. A slower agent fails."""
    env_threads: Annotated[int, Range(0), Changes.SETUP] = 64
    """The number of threads that step environments. 0 is fastest if a step takes microseconds."""
    env_workers: Annotated[Literal["local", "ray"], Changes.SETUP] = "local"
    """Where environments run: on this machine (local), or in Ray actors on a cluster's nodes (ray)."""
    ray_address: Annotated[str, Changes.SETUP] = ""
    """The Ray cluster that this machine has joined: auto or HOST:PORT. Empty starts one on this machine."""

    def __post_init__(self) -> None:
        if callable(self.env):
            raise ConfigError(f"env must be an id, got {self.env!r}; a function belongs into train(env=...)")
        super().__post_init__()
        object.__setattr__(self, "env", absolute(self.env))
        object.__setattr__(self, "env_args", {absolute(name): value for name, value in self.env_args.items()})
        if self.env.startswith(GIVEN) and self.env_workers != "local":
            raise ConfigError(
                "an environment that a Python program gives must be on this machine, got --env-workers "
                f"{self.env_workers}"
            )
        if self.ray_address and self.env_workers != "ray":
            raise ConfigError("--ray-address is for --env-workers ray, got --env-workers local")
        if "split" in self.env_args:
            split = self.env_args["split"]
            raise ConfigError(f"env_args has the split {split!r}; give --split {split} instead")
        known = self.environments()
        if other := [name for name in self.env_args if not name.isidentifier() and name not in known]:
            raise ConfigError(
                f"env_args has {', '.join(other)}, which --env {self.env} does not name; correct one of them"
            )
        self._check_agent()
        if not self.has_splits:
            if self.split not in ("", "all"):
                raise ConfigError(f"--env {self.env} takes no split, got --split {self.split}; leave it out")
            object.__setattr__(self, "split", "all")

    def _check_agent(self) -> None:
        if not self.agent:
            if isinstance(self.tasks, Path):
                raise ConfigError(
                    f"a file of tasks is for --agent, got --tasks {self.tasks} and no agent; leave it out"
                )
            once_default = ("agent_sampling", "run")
            for name in ("at_k", "agent_sampling", "agent_timeout_s", "agent_upstream"):
                value = getattr(self, name)
                if value != getattr(Environment, name) and (name, value) != once_default:
                    raise ConfigError(f"--{name.replace('_', '-')} is for --agent, and none is given; leave it out")
            return
        if self.env == Environment.env:
            object.__setattr__(self, "env", AGENT_ENV)
        if self.env != AGENT_ENV:
            raise ConfigError(f"--agent is in place of --env, got --env {self.env}; leave one of them out")
        if not isinstance(self.tasks, Path):
            raise ConfigError(
                "--agent needs --tasks FILE, with a JSON object in each line: the tasks that the agent gets"
            )
        if self.env_workers != "local":
            raise ConfigError("an agent must run on this machine, got --env-workers ray; leave it out")

    def sampling(self, *, hosted: bool) -> Literal["run", "strict", "agent"]:
        """What `read_call` does with an agent's own options, by whether a hosted model answers it."""
        return self.agent_sampling if self.agent_sampling != "auto" else "agent" if hosted else "run"

    @property
    def has_splits(self) -> bool:
        """Whether there are splits. A class of yours may take none; then training and evaluation have the same
        tasks.
        """
        name, *others = self.environments()
        return bool(others) or ":" not in name or name.startswith(GIVEN) or has_splits(name)

    def environments(self) -> dict[str, int]:
        return read_environments(self.env)

    @property
    def name(self) -> str:
        """The agent or `env` as a part of a folder's name: A:2,B becomes A-2+B, a.py:A A, and "node agent.js"
        node-agent-js.
        """
        if self.agent:
            return re.sub(r"\W+", "-", self.agent).strip("-")[:60]
        env = re.sub(r"[^,]+\.py:", "", self.env)
        return env.replace(",", "+").replace(":", "-") if "," in env else env.removeprefix(GIVEN)

    def arguments(self, split: str = "") -> dict[str, Any]:
        """The arguments of ``gym.make``: `env_args`, and `split`, by default this section's, if there are splits."""
        chosen = split or self.split
        return {**self.env_args, **({"split": chosen} if chosen else {})}
