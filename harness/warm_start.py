"""`python -m harness.warm_start`: clones the environment's expert into a model, and leaves a model folder.

It is the warm start of `harness.grpo` alone. With the same settings and seed it gives the same weights. Use it if several runs
are to begin from one model, or to see what a warm start costs before a run needs it.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from eh_gym.errors import ConfigError
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.environment import EnvironmentFlags
from harness.settings.grpo import GRPOConfig
from harness.settings.model import ModelFlags
from harness.settings.presets import preset
from harness.settings.warm_start import WarmStart

__all__ = ["Cloning", "clone", "default_for", "main"]

_EPISODES = 200  # demonstrations for a model that is not tiny


@dataclass(frozen=True)
class CloneFlags:
    """Where the clone is written, and how it is made."""

    out: Path = Path("clone")
    """The folder of the model. It must not hold one yet."""
    seed: int = 0
    """The seed of the demonstrations, the batches, and the weights of a tiny model."""
    max_observation_tokens: int = 0
    """A longer observation loses its middle. 0 keeps all of it. Give the same value as in the run."""
    device: str = "auto"
    """The device: cpu, cuda, cuda:1, mps. auto takes a GPU if there is one."""
    threads: int = 0
    """The number of torch threads. 0 leaves torch's default. One is fastest for tiny models."""


@dataclass(frozen=True)
class Cloning(CloneFlags, ModelFlags, EnvironmentFlags):
    """Clones the environment's expert into a model, leaves a model folder, and says what it cost."""

    warm_start: WarmStart = field(default_factory=WarmStart)
    """How the expert is cloned."""

    def for_run(self) -> GRPOConfig:
        """Returns the settings of a training run that begins with this warm start."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "out"}
        return dataclasses.replace(preset(["--env", self.env, "--model", self.model]), **shared)


def clone(cloning: Cloning, console: Console) -> dict[str, float]:
    """Carries out the warm start, writes the folder, and prints what it cost.

    Returns:
        The metrics ``warm_start/...``, as in ``warm_start.json`` of the folder.

    Raises:
        ConfigError: A setting is wrong, the folder holds a model, or the environment has no expert.
    """
    config = cloning.for_run()
    if not cloning.warm_start.episodes:
        raise ConfigError("a warm start needs demonstrations; give --warm-start.episodes, such as 200")
    if (cloning.out / "config.json").exists():
        raise ConfigError(
            f"{cloning.out} already holds a model or a part of one; choose another --out, or delete the folder"
        )

    from harness.assembly.environments import (  # torch takes seconds to import, and `--help` needs none of it
        environment,
        teacher,
    )
    from harness.assembly.first_policy import clone_expert, load
    from harness.policy.lora import check_peft
    from harness.policy.ranks import Ranks
    from harness.run.display import Display
    from harness.run.files import make_folder, write_whole
    from harness.run.runtime import pick_device, set_threads

    set_threads(config.threads)
    if config.lora_rank:
        check_peft()
    make_folder(cloning.out, "--out")
    ranks, display = Ranks(), Display(console)
    device = pick_device(config.device)
    env = teacher(config, environment(config, ranks))
    policy = load(config, env, device, ranks)
    cloned = clone_expert(config, env, policy, device, display, cached=False)
    env.close()
    policy.save(cloning.out)
    settings = {"settings": dataclasses.asdict(cloning), "metrics": cloned}
    write_whole(cloning.out / "warm_start.json", json.dumps(settings, indent=2, default=str))
    display.note(
        f"model: {cloning.out}; train it with python -m harness.grpo {shlex.join(_flags(config, cloning.out))}"
    )
    return cloned


def _flags(config: GRPOConfig, model: Path) -> list[str]:
    """The flags of a run of `config` that begins from the folder `model`, whose own defaults are those of a large model."""
    words = ["--env", config.env, "--model", str(model)]
    default = preset(words)
    for f in dataclasses.fields(GRPOConfig):
        value = getattr(config, f.name)
        if f.name in ("model", "warm_start") or value == getattr(default, f.name):
            continue
        flag = f.name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def default_for(words: Sequence[str]) -> Cloning:
    """Returns the defaults for a command line: those of a run of `harness.grpo`, but always with a warm start, by --seed."""
    run = preset(words)
    shared = {f.name: getattr(run, f.name) for f in dataclasses.fields(Cloning) if f.name != "out"}
    start = run.warm_start if run.warm_start.episodes else WarmStart(episodes=_EPISODES)
    return Cloning(**shared | {"warm_start": dataclasses.replace(start, seed=-1)})


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console()
    with errors_in_one_line(console):
        clone(parse(default_for(words), words, prog="python -m harness.warm_start"), console)


if __name__ == "__main__":
    main()
