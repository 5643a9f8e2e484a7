"""The settings of harness.evaluate, and the benchmarks' own conventions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from eh_gym.errors import ConfigError
from eh_gym.ranges import Range
from envs.description import Description, description_of, descriptions
from harness.settings.environment import Environment
from harness.settings.model import Model
from harness.settings.rollout import Rollout
from harness.settings.sampling import SAMPLING, Sampling, TransformersSampling
from harness.settings.section import FIRST, Changes, Section, flat, marks

ENDPOINT = "openai"
"""The policy that is a model behind an endpoint."""


@dataclass(frozen=True)
class Endpoint(Section):
    """The endpoint, for --policy openai."""

    changes = Changes.MACHINE

    base_url: Annotated[str, FIRST] = ""
    """The address of the server, usually http://HOST:PORT/v1. Empty takes OPENAI_BASE_URL, or OpenAI itself."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. A server of your own may need none."""
    retries: Annotated[int, Range(0)] = 4
    """How often a request is sent again, after growing pauses, if the connection is lost or the error is temporary."""
    deadline_s: Annotated[float, Range(0, above=True)] = 300.0
    """The most seconds that the server may be silent, in each try of a request."""
    extra_body: Annotated[Mapping[str, Any], Changes.RESULT] = field(default_factory=dict)
    """Fields of every request, as a JSON object. They replace an agent's; null leaves a field out, such as
    '{"seed": null}'."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if taken := [name for name in ("messages", "model", "n", "stream", "tools") if name in self.extra_body]:
            raise ConfigError(f"--extra-body must not have {', '.join(taken)}; leave it out")


# The defaults of the settings that only some policies have.
_UNUSED = flat(Model()) | flat(Endpoint()) | flat(TransformersSampling()) | {"sampler": TransformersSampling.sampler}


@dataclass(frozen=True)
class EvaluateConfig(Section):
    """Measures a policy on held-out tasks: mean@k, best@k and their 95 % intervals. If the folder of a run precedes the
    flags, its model plays, and its environment or agent, split, K and limits are the defaults.
    """

    changes = Changes.RESULT

    policy: str = "expert"
    """expert, random, empty, a script of the environment (python -m envs list), openai (an endpoint, whose model
    --model names), or a model: a folder or a hub id."""
    official: Annotated[bool, Changes.EPISODES] = False
    """Take the benchmark's own split, prompt and K, and greedy actions, as defaults; python -m envs list shows them."""
    every: Annotated[int, Range(1), Changes.EPISODES] = 1
    """Take only every N-th task of the split. BFCL's categories follow each other: 40 takes 5 entries of each one."""
    rollouts: Annotated[int | None, Range(1), Changes.EPISODES] = None
    """The number of episodes per task (k). By default 8, and 1 if all would be alike (expert, empty, greedy)."""
    horizon: Annotated[int, Range(1)] = 50
    """The fixed K, in steps."""
    seed: Annotated[int, Range(0)] = 0
    """The seed of the evaluation. Every sampled token is derived from it."""
    out: Annotated[Path | None, Changes.SETUP] = None
    """A folder for the result and the episodes. After a stop, the same command plays the missing episodes. Without it,
    nothing is kept."""
    show: Annotated[int, Range(0), Changes.SETUP] = 0
    """Print the first N episodes that are played, turn by turn."""
    environment: Environment = field(default_factory=Environment)
    model: Model = field(default_factory=lambda: Model(dtype="float32"))
    endpoint: Endpoint = field(default_factory=Endpoint)
    rollout: Rollout = field(default_factory=lambda: Rollout(rollout="lockstep", slots=64))
    sampling: Annotated[Sampling, Changes.DRAWS] = field(
        default_factory=TransformersSampling, metadata={"choice": SAMPLING}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy == ENDPOINT:
            formats = set() if self.model.tags else {"reasoning_format"}  # a server's text may have tags
            self._refuse(
                {"sampler", "max_context", "max_observation_tokens"} | formats,
                f"is not for --policy {ENDPOINT}, whose server has limits of its own and renders the messages",
            )
        else:
            self._refuse({"base_url", "model"}, f"is for --policy {ENDPOINT}")
        env = self.environment
        if env.agent and self.policy in ("expert", "random", "empty", "tiny"):
            raise ConfigError(
                f"--agent needs a model, got --policy {self.policy}; give --policy a folder or hub id, or {ENDPOINT}"
            )
        if any(weight > 1 for weight in env.environments().values()):
            raise ConfigError(
                f"an evaluation plays the tasks of all environments, so --env has no weights, got {env.env!r}"
            )
        if self.official:
            for name, value in official(env.env).get("env_args", {}).items():
                if env.env_args.get(name) != value:
                    raise ConfigError(f"--official needs '{json.dumps({name: value})}' in --env-args; add it")

    def _refuse(self, names: set[str], why: str) -> None:
        for name, value in flat(self).items():
            if name in names and value != _UNUSED[name]:
                raise ConfigError(f"--{name.replace('_', '-')} {why}, got --policy {self.policy}; leave it out")

    def decisive(self) -> dict[str, Any]:
        decide, marked = (Changes.RESULT, Changes.DRAWS, None), marks(type(self))  # None: a sampler of the user's
        settings = flat(self)
        if self.environment.sampling(hosted=bool(self.environment.agent) and self.policy == ENDPOINT) == "run":
            settings["agent_sampling"] = "run"
        return {name: value for name, value in settings.items() if marked.get(name) in decide}

    def departures(self, *, whole_split: bool) -> tuple[str, ...]:
        env = self.environment
        about = description_of(env.env) if self.official else None
        if about is None:
            return ()
        departs = {
            "--tasks": env.tasks is not None and not whole_split,
            "--every": self.every > 1 and not whole_split,
            "--horizon": self.horizon != about.official["horizon"],
            "--split": env.split not in (about.official["split"], *about.official_splits),
            "--env-args": {*about.part_arguments} & {*env.env_args},
        }
        return tuple(flag for flag, departed in departs.items() if departed)


def official(env: str) -> dict[str, Any]:
    """Returns the settings of a benchmark's own rules, with greedy actions.

    >>> official("EH-AppWorld-v0")
    {'official': True, 'temperature': 0.0, 'split': 'test_normal', 'horizon': 50}
    """
    about = description_of(env)
    if not about or not about.official:
        known = " and ".join(name for name, about in descriptions().items() if about.official)
        raise ConfigError(f"--official is for {known}, got --env {env}; leave it out")
    return {"official": True, "temperature": 0.0, **about.official}


def default_split(env: str, script: bool) -> str:
    """Returns the split that is evaluated where none is named. `script`: the player is not a model."""
    about = description_of(env) or Description  # the class has the defaults
    return about.script_split if script else about.model_split
