"""The command line of harness.grpo: a recipe or the run that is resumed, the flags, and what they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError
from envs.description import description_of
from envs.mixed import read_environments
from harness.records.run_folder import saved_config
from harness.settings.command_line import flag_of, given_flags, parse
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.recipe import QUICKSTART, recipe_file
from harness.settings.section import Changes, changed, flat, marks


@dataclass(frozen=True)
class Command:
    """Trains an agent with GRPO on a Gymnasium text environment, under a horizon that is fixed, scheduled or
    elastic.
    """

    config: GRPOConfig
    recipe: str = QUICKSTART
    """The settings to begin with: a recipe of this project (quickstart, smollm2, bfcl, appworld, lora, paper, or
    another name of recipes/), or a TOML file. Flags override it. paper has the defaults of the reference page."""
    resume: Path | None = None
    """Continue the run in this folder. It keeps its settings, but for --updates and flags about the machine
    (docs/reference/flags.md)."""


@dataclass(frozen=True)
class RunRequest:
    """What a command line or a Python program asks for.

    Attributes:
        config: The settings. A resumed run has its own, except those about the machine.
        resume: The folder of the run to continue; None for a new run.
        updates: The new length of a run that is resumed; None leaves it.
        notes: Lines to show first.
        python: Whether a Python program asks. Then the advice after a stop is Python, too.
    """

    config: GRPOConfig
    resume: Path | None = None
    updates: int | None = None
    notes: Sequence[str] = ()
    python: bool = False


def read_command(words: Sequence[str]) -> RunRequest:
    resume = flag_of(words, "resume")
    base = saved_config(Path(resume), flag_of(words, "env")) if resume else recipe_config(words)
    command = parse(
        Command(base, recipe=flag_of(words, "recipe", QUICKSTART)),
        words,
        prog="python -m harness.grpo",
        short=True,
    )
    wanted, given = command.config, given_flags(words)
    if command.resume is not None:
        return _resumed(command.resume, base, wanted, given)
    for flag, name in given.items():
        if name.startswith("warm_start.") and not wanted.warm_start.episodes and name != "warm_start.episodes":
            raise ConfigError(f"{flag} is for a warm start, and this run has none; add --warm-start.episodes 200")
    file = recipe_file(command.recipe)
    place = ", the defaults of --help-all" if file is None else "" if str(file) == command.recipe else f" ({file})"
    note = f"recipe: {command.recipe}{place}"
    return RunRequest(wanted, notes=[note + ("" if flag_of(words, "recipe") else "; --recipe chooses another")])


def recipe_config(words: Sequence[str]) -> GRPOConfig:
    """Returns the settings of the recipe that a command line names, or of the quick start where that fits its flags."""
    recipe = flag_of(words, "recipe")
    if not recipe and (model := flag_of(words, "model")) and model != "tiny":
        raise ConfigError(
            f"--model {model} needs a recipe: --recipe paper has the paper's settings, lora those for adapters, and "
            "smollm2 those for small models on a CPU"
        )
    env = flag_of(words, "env")
    for name in read_environments(env) if env and not recipe else ():
        if (about := description_of(name)) and about.recipe:
            raise ConfigError(f"--env {env} needs a recipe: --recipe {about.recipe} trains a tiny model on it")
    chosen = {flag: name for flag in ("wrapper", "sampler") if (name := flag_of(words, flag))}
    return from_recipe(recipe or QUICKSTART, chosen)


def resumable() -> list[str]:
    """Returns the settings that a resumed run may have otherwise: its length, and those about the machine."""
    return ["updates", *(name for name, what in marks(GRPOConfig).items() if what is Changes.MACHINE)]


def _resumed(folder: Path, base: GRPOConfig, wanted: GRPOConfig, given: Mapping[str, str]) -> RunRequest:
    values, before, may = flat(wanted), flat(base), resumable()
    ignored = [
        flag
        for flag, name in given.items()
        if name == "recipe" or (name in values and name not in may and values[name] != before[name])
    ]
    note = f"note: the run goes on with its own settings; ignored: {', '.join(sorted(ignored))}"
    return RunRequest(
        changed(base, **{name: values[name] for name in given.values() if name in may and name != "updates"}),
        resume=folder,
        updates=wanted.updates if "updates" in given.values() else None,
        notes=[note] if ignored else [],
    )
