"""The settings of harness.evaluate, and the benchmarks' own conventions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from eh_gym.errors import ConfigError
from envs.making import read_env_args
from envs.mixed import read_environments
from harness.settings.agent import AGENT_ENV, AgentFlags
from harness.settings.ranges import Range, check_settings
from harness.settings.reasoning import ReasoningFlags
from harness.settings.sampling import SamplingFlags
from harness.types.rules import RolloutMode

__all__ = ["Evaluation", "official"]

# These say which episodes are played, where, and how fast. An evaluation may continue with other values of them.
_NOT_DECISIVE = (
    *("official", "tasks", "every", "rollouts", "out", "device", "threads", "slots", "rollout"),
    *("base_url", "api_key_env", "retries", "deadline_s"),
    *("url", "gpu_memory_utilization"),
)


@dataclass(frozen=True)
class TasksFlags:
    """Which tasks are played, and how often."""

    env: str = "EH-Cabinet-v0"
    """The id of the environment."""
    official: bool = False
    """Take the benchmark's own split, prompt and K, and greedy actions, as the defaults (EH-BFCL, EH-AppWorld)."""
    env_args: str = "{}"
    """Further arguments of gym.make, as a JSON object."""
    split: str | None = None
    """The split of the tasks. The default is test for a model and all for the others; for AppWorld, test_normal and dev."""
    tasks: Annotated[int | Path | None, Range(1)] = None
    """The number of tasks, in the order of the split. By default all of a finite split, and 128 of a generated one. With --agent:
    the file of its tasks."""
    every: Annotated[int, Range(1)] = 1
    """Take only every N-th task of the split. BFCL's categories follow each other: 40 takes 5 entries of each one."""
    rollouts: Annotated[int | None, Range(1)] = None
    """The number of episodes per task (k). By default 8, and 1 if all would be alike (expert, empty, greedy)."""
    horizon: Annotated[int, Range(1)] = 50
    """The fixed K, in steps."""
    seed: int = 0
    """The seed of the evaluation. Every sampled token is derived from it."""


@dataclass(frozen=True)
class PolicyFlags:
    """Who plays."""

    policy: str = "expert"
    """expert, random, empty, openai (an endpoint), or a model: a folder or a hub id."""
    device: str = "auto"
    """The device of a model: cpu, cuda, cuda:1, mps. auto takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of the model's weights."""
    threads: Annotated[int | None, Range(0)] = None
    """The number of torch threads. 0 leaves torch's default, which a model of 50 million parameters or more has without this
    flag; a smaller one has one."""


@dataclass(frozen=True)
class EndpointFlags:
    """The endpoint, for --policy openai."""

    base_url: str = ""
    """The address of the server, usually http://HOST:PORT/v1. Empty takes OPENAI_BASE_URL, or OpenAI itself."""
    model: str = ""
    """The name of the model at the endpoint."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. A server of your own may need none."""
    retries: Annotated[int, Range(0)] = 4
    """How often a request is sent again, with backoff, after a lost connection or a temporary error."""
    deadline_s: Annotated[float, Range(0, above=True)] = 300.0
    """The most seconds for which the server may be silent, in each try of a request."""


@dataclass(frozen=True)
class RolloutFlags:
    """How episodes are played."""

    rollout: RolloutMode = "lockstep"
    """lockstep gives the same result every time, to the last bit. In streaming no episode waits for another's environment."""
    slots: Annotated[int, Range(1)] = 64
    """The number of environments that are played at once. An endpoint gets no more requests than this at a time."""
    temperature: Annotated[float, Range(0, 2)] = 1.0
    """The temperature of the sampled actions. 0 is greedy."""
    max_action_tokens: Annotated[int, Range(1)] = 1024
    """The most tokens of one action."""
    max_observation_tokens: int = 0
    """A longer observation loses its middle. 0 keeps all of it."""


@dataclass(frozen=True)
class OutputFlags:
    """Where the episodes are kept."""

    out: Path | None = None
    """A folder for the result and the episodes. After a stop, the same command plays the missing episodes. Without it, nothing is
    kept."""


@dataclass(frozen=True)
class Evaluation(
    OutputFlags, SamplingFlags, ReasoningFlags, RolloutFlags, EndpointFlags, PolicyFlags, AgentFlags, TasksFlags
):
    """Measures a policy on held-out tasks: mean@k, best@k and their 95 % intervals."""

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that an episode depends on, besides its task and seed."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_DECISIVE}

    def checked_environment_args(self) -> dict[str, Any]:
        """Returns the arguments of the environment.

        Raises:
            ConfigError: A flag is wrong, or has no effect on this policy.
        """
        if self.policy != "openai":
            unused, why = {"base_url", "model"}, "is for --policy openai"
        else:
            unused = {
                "sampler",
                "url",
                "max_context",
                "max_observation_tokens",
                "reasoning_format",
            }
            why = "is not for --policy openai, whose server has limits of its own and renders the messages"
        for name in sorted(unused):
            if getattr(self, name) != getattr(Evaluation, name):
                raise ConfigError(f"--{name.replace('_', '-')} {why}, got --policy {self.policy}")
        check_settings(self)
        self.check_reasoning()
        self.check_agent(
            AGENT_ENV if self.env == TasksFlags.env else self.env,
            model=self.policy,
            tasks=self.tasks if isinstance(self.tasks, Path) else None,
        )
        if self.agent and self.policy in ("expert", "random", "empty", "openai"):
            raise ConfigError(f"--agent needs a model, got --policy {self.policy}; give --policy a folder or hub id")
        if any(weight > 1 for weight in read_environments(self.env).values()):
            raise ConfigError(
                f"an evaluation plays the tasks of all environments, so --env has no weights, got {self.env!r}"
            )
        args = read_env_args(self.env_args)
        if "split" in args:
            raise ConfigError(f"env_args has the split {args['split']!r}; give --split {args['split']} instead")
        if self.official and _name(self.env) == "EH-BFCL" and args.get("prompt") != "official":
            raise ConfigError(
                f"""--official needs {'{"prompt": "official"}'} in --env-args, got {self.env_args}; add it"""
            )
        return args


_OFFICIAL: dict[str, dict[str, Any]] = {
    # K is so large that BFCL's own limit applies first: 8 turns of 21 steps at most.
    "EH-BFCL": {"split": "all", "env_args": '{"prompt": "official"}', "horizon": 200},
    "EH-AppWorld": {"split": "test_normal", "horizon": 50},
}


def official(env: str) -> dict[str, Any]:
    """Returns the settings of a benchmark's own conventions: its split, its prompt, K, and one greedy episode of each task.

    >>> official("EH-AppWorld-v0")
    {'official': True, 'temperature': 0.0, 'split': 'test_normal', 'horizon': 50}

    Raises:
        ConfigError: The environment is no benchmark's.
    """
    own = _OFFICIAL.get(_name(env))
    if own is None:
        raise ConfigError(f"--official is for {' and '.join(_OFFICIAL)}, got --env {env}; leave it out")
    return {"official": True, "temperature": 0.0, **own}


def _name(env: str) -> str:
    """An environment's id without its package and version."""
    return env.rpartition(":")[2].rsplit("-v", 1)[0]
