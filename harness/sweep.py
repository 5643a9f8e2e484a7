"""`python -m harness.sweep`: runs the paper's experiments and ablations on any environment and model, several runs at once.

Every run is a subprocess on this machine. After a kill, start the same command again: it skips the runs that have ended, and
continues the others from their checkpoints. `harness.report` draws the figures.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from eh_gym.errors import ConfigError
from envs.making import make_environment
from harness.experiments.jobs import Job, cpu_cores, job_slots, run_jobs
from harness.experiments.manifest import all_seeds, has_ended, run_name, write_manifest
from harness.experiments.paper import PAPER
from harness.experiments.report.runs import read_suites, tables_of
from harness.experiments.suite_table import SuiteTable
from harness.experiments.suites import PAPER_SUITES, SuiteArm, quick_settings, suite_arms
from harness.rollout.environment import spec_of
from harness.run.files import lock_folder, read_object
from harness.run.run_folder import SHARDS, latest_checkpoint, prepare
from harness.settings.command_line import errors_in_one_line, given_flags
from harness.settings.command_line import parse as parse_flags
from harness.settings.grpo import FIRST_FLAGS, GRPOConfig
from harness.settings.presets import flag_of, preset
from harness.settings.ranges import Range, check_settings
from harness.settings.recipe import read_recipe

__all__ = ["Sweep", "main", "parse", "read_tables", "sweep"]


_FOLDER = Path("runs/sweep")


@dataclass(frozen=True)
class SweepFlags:
    """Which experiments are run, and how many runs go on at once."""

    suite: Literal[
        "saturation",
        "convergence",
        "comparison",
        "percentile",
        "headroom",
        "ema",
        "learning",
        "pretrained",
        "recurring",
        "all",
    ]
    """saturation: success by fixed K. convergence: K from below and from above. comparison: elastic against fixed K and
    schedules. percentile, headroom, ema: the ablations. learning: which default learns most per token. pretrained: the
    paper's questions with SmolLM2, on EH-CabinetLocked and then on EH-BFCL, each in its own folder below --out; or with another
    --model, or on one --env. recurring: a horizon for each task, on 96 tasks of a cabinet. all: the paper's six, which share
    runs."""
    quick: bool = False
    """Use fewer arms and fewer held-out episodes. With the tiny model this takes minutes on a CPU."""
    seeds: Annotated[int, Range(1)] = 3
    """The number of runs per arm. Their seeds count up from --seed."""
    jobs: Annotated[int, Range(0)] = 0
    """The number of runs at once. 0 takes one per GPU, or without GPUs one per --threads cores; with --threads 0 a run takes all
    cores. With --sampler vllm-server it is 1."""
    ranks: Annotated[int, Range(1)] = 1
    """The number of processes of a run, under torchrun, each with a GPU of its own. The paper's recipes need 8."""
    threshold: Annotated[float, Range(0, 1)] = 0.0
    """The success rate up to which tokens are counted. 0 takes 0.5, and 0.8 with --quick."""


@dataclass(frozen=True)
class Sweep(SweepFlags):
    """Runs the paper's experiments and prints their tables. It also takes every flag of harness.grpo.

    If the command is started again, it skips the runs that have ended and continues the others.
    """

    train: GRPOConfig = field(default_factory=GRPOConfig)
    """The settings that all runs share. Its `out` is the folder of the sweep; several suites in one folder share their runs."""

    @property
    def out(self) -> Path:
        """The folder of the sweep."""
        return self.train.out or _FOLDER


_PRETRAINED_ENVS = ("EH-CabinetLocked-v0", "EH-BFCL-v0")

_STRETCHED = {"k_max"}
"""Settings that an arm may derive from the shared value, so the shared value can be given."""

TRAIN = (sys.executable, "-m", "harness.grpo")


def sweep(settings: Sweep, console: Console, program: Sequence[str] = TRAIN) -> list[str]:
    """Carries out a sweep and prints its tables.

    Args:
        settings: The settings of the sweep.
        console: The console to print to.
        program: The command that carries out a run, Python first. ``--resume FOLDER`` is appended to it; the folder holds at
            least ``config.json``. The program writes ``evaluation.json`` last.

    Returns:
        The names of the runs that failed.

    Raises:
        ConfigError: A setting is wrong, another sweep works in the folder, or the folder has the suite with other settings.
    """

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    names = list(PAPER_SUITES) if settings.suite == "all" else [settings.suite]
    seeds = range(settings.train.seed, settings.train.seed + settings.seeds)
    suites = {name: suite_arms(name, settings.train, quick=settings.quick) for name in names}
    runs = _runs(settings, suites, seeds)
    slots = _slots(settings)
    threshold = settings.threshold or (0.8 if settings.quick else 0.5)
    busy = f"another sweep, or a run of it, works in {settings.out}; wait for its end, or choose another --out"
    with lock_folder(settings.out, busy) as lock:
        _check_warm_starts([config for config, _ in runs.values()])
        listed = {name: all_seeds(settings.out, name, settings.train, seeds) for name in suites}
        for name, arms in suites.items():
            write_manifest(
                settings.out, name, settings.train, arms, listed[name], quick=settings.quick, threshold=threshold
            )
        done = [name for name, (config, _) in runs.items() if has_ended(_folder(config))]
        _check_begun([_folder(config) for name, (config, _) in runs.items() if name not in done], settings.ranks)
        command = _with_ranks(program, settings.ranks)
        jobs = [
            _job(settings.out, name, title, config, command)
            for name, (config, title) in runs.items()
            if name not in done
        ]
        _plan(console, settings, runs=runs, suites=suites, done=len(done), at_once=min(len(slots), len(jobs)))
        codes = run_jobs(jobs, slots, say, done=len(done), lock=lock)
    for table in read_tables(settings.out, names):
        print_table(table, console)
    failed = [name for name, code in codes.items() if code]
    if failed:
        say(f"{len(failed)} of {len(runs)} runs failed; start the same command again to continue them:")
        for name in failed:
            say(f"  {runs[name][1]}: {settings.out / 'logs' / f'{name}.log'}")
    return failed


def read_tables(out: Path, suites: Sequence[str]) -> list[SuiteTable]:
    """Returns the tables of suites, from the runs that have ended."""
    return [table for table, _ in tables_of(read_suites([out])) if table.suite in suites]


def print_table(table: SuiteTable, console: Console) -> None:
    """Prints a suite's table and its notes, then the paper's own numbers."""
    console.print(f"\n{table.suite}: mean ± standard deviation over seeds", highlight=False)
    shown = Table()
    for heading in (table.suite, "runs", *(c.heading for c in table.columns)):
        shown.add_column(heading)
    for (_, runs, _), (label, *cells) in zip(table.rows, table.cells(), strict=True):
        shown.add_row(label, str(runs), *cells)
    console.print(shown)
    for note in table.notes:
        console.print(note, highlight=False, soft_wrap=True)
    for paper in PAPER.get(table.suite, ()):
        console.print(paper.title, highlight=False, soft_wrap=True)
        theirs = Table()
        for heading in (table.suite, *paper.columns):
            theirs.add_column(heading)
        for label, texts in paper.rows.items():
            theirs.add_row(label, *texts)
        console.print(theirs)


def _runs(
    settings: Sweep, suites: dict[str, list[SuiteArm]], seeds: Sequence[int]
) -> dict[str, tuple[GRPOConfig, str]]:
    """Returns every run once, by name: its settings, and its name for a reader.

    All arms of one seed come before the next seed, so that every arm has its first run early.
    """
    runs: dict[str, tuple[GRPOConfig, str]] = {}
    for seed in seeds:
        for name, arms in suites.items():
            for arm in arms:
                config = dataclasses.replace(settings.train, seed=seed, **arm.settings)
                config.controller()  # impossible settings raise an error here, not in every run
                run = run_name(config)
                config = dataclasses.replace(config, out=settings.out / "runs" / run)
                runs.setdefault(run, (config, f"{name} {arm.label} seed {seed}"))
    return runs


def _check_warm_starts(configs: Sequence[GRPOConfig]) -> None:
    """Refuses to share a run whose warm start had another seed. No name of a run tells it."""
    for config in configs:
        path, wanted = _folder(config) / "config.json", config.warm_start.seed
        kept = read_object(path).get("warm_start", {}).get("seed", wanted) if path.exists() else wanted
        if kept != wanted:
            raise ConfigError(
                f"{path.parent} was begun with --warm-start.seed {kept}, got {wanted}; give the same, or choose another --out"
            )


def _check_begun(folders: Sequence[Path], ranks: int) -> None:
    """Refuses to continue runs under torchrun that began without it, or the reverse."""
    for folder in folders:
        newest = latest_checkpoint(folder / "checkpoints")
        if newest is not None and (newest / SHARDS).exists() != (ranks > 1):
            begun, fix = ("without", "leave it out") if ranks > 1 else ("with", "give it, any N above 1")
            raise ConfigError(
                f"{folder} was begun {begun} --ranks N, and can't go on otherwise; {fix}, or choose another --out"
            )


def _with_ranks(program: Sequence[str], ranks: int) -> tuple[str, ...]:
    """The command that starts so many processes of a program. ``--standalone`` takes a free port."""
    if ranks == 1:
        return tuple(program)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return (program[0], *torchrun, *program[1:])


def _job(out: Path, name: str, title: str, config: GRPOConfig, program: Sequence[str]) -> Job:
    """Makes the folder of a run, unless it exists, and the job that continues the run in it."""
    folder = _folder(config)
    if not (folder / "config.json").exists():
        # Chosen once: a run that is started again computes as it began, elsewhere too.
        prepare(dataclasses.replace(config, dtype=_dtype_here(config.dtype, config.device)))
    return Job(name, title, (*program, "--resume", str(folder)), out / "logs" / f"{name}.log")


def _folder(config: GRPOConfig) -> Path:
    assert config.out is not None
    return config.out


def _slots(settings: Sweep) -> list[dict[str, str]]:
    train = settings.train
    gpus: list[str] = []
    if train.device in ("auto", "cuda"):
        from harness.run.runtime import visible_gpus  # torch takes seconds to import

        gpus = visible_gpus()
    if train.device.startswith("cuda:"):
        raise ConfigError(
            f"--device {train.device} would put every run on one GPU; use --device cuda and CUDA_VISIBLE_DEVICES"
        )
    if train.sampler == "vllm-server" and settings.jobs > 1:
        raise ConfigError(
            f"--jobs {settings.jobs}: the runs would overwrite each other's weights on the servers; use --jobs 1"
        )
    jobs = 1 if train.sampler == "vllm-server" else settings.jobs
    if settings.ranks > 1:
        train.check_ranks()
    return job_slots(jobs, gpus=gpus, per_job=settings.ranks, cores=cpu_cores(), threads=train.threads)


@cache
def _dtype_here(name: str, device: str) -> Literal["float32", "bfloat16"]:
    """Returns the type of weights that `name` stands for on this machine, and warns of a slow one here, where it is seen."""
    if name == "float32":
        return "float32"  # torch takes seconds to import
    from harness.run.runtime import choose_dtype, pick_device, pick_dtype

    pick_dtype(name, pick_device(device))
    return choose_dtype(name, pick_device(device))


def _plan(
    console: Console,
    settings: Sweep,
    *,
    runs: dict[str, tuple[GRPOConfig, str]],
    suites: dict[str, list[SuiteArm]],
    done: int,
    at_once: int,
) -> None:
    broken_off = sum(
        (_folder(config) / "metrics.jsonl").exists() and not has_ended(_folder(config)) for config, _ in runs.values()
    )
    shared = settings.seeds * sum(len(arms) for arms in suites.values()) - len(runs)
    table = Table(title="sweep", title_justify="left", show_header=False)
    table.add_row("suites", ", ".join(f"{name} ({len(arms)} arms)" for name, arms in suites.items()))
    table.add_row("environment, model", f"{settings.train.env}, {settings.train.model}")
    table.add_row("updates per run", str(settings.train.updates))
    table.add_row(
        "runs",
        f"{len(runs)} ({settings.seeds} seeds, {shared} shared between suites): {done} done, "
        f"{broken_off} to continue, {len(runs) - done - broken_off} to begin; {at_once} at a time",
    )
    table.add_row("folder", str(settings.out))
    console.print(table, markup=False)


def parse(words: list[str]) -> Sweep:
    """Reads the settings from a command line.

    Raises:
        ConfigError: A flag is for a single run, or the suite sets it.
    """
    words = [*words, *_suite_flags(words)]
    quick = "--quick" in words
    train = preset(words, _quick_defaults if quick else lambda config: config)
    given = set(given_flags(words).values())
    default: Any = Sweep(suite=tyro.MISSING, train=train)
    settings: Sweep = parse_flags(default, words, prog="python -m harness.sweep", first=(*FIRST_FLAGS, *vars(default)))
    recipe = read_recipe(train.recipe, GRPOConfig) if train.recipe is not None else {}
    settings = dataclasses.replace(settings, train=_settled(settings.train, given | recipe.keys(), quick=quick))
    check_settings(settings)
    if "resume" in given:
        raise ConfigError("--resume is for a single run; a sweep resumes by itself, in its folder, --out")
    for suite in PAPER_SUITES if settings.suite == "all" else [settings.suite]:
        if suite == "saturation" and settings.train.budget_hint:
            raise ConfigError(
                "with --budget-hint the agent sees K, so saturation can't count the success at each K from longer episodes; "
                "leave it out"
            )
        varied = {name for arm in suite_arms(suite, settings.train, quick=quick) for name in arm.settings}
        for name in sorted(given & varied - _STRETCHED):
            raise ConfigError(f"--{name.replace('_', '-')} is set by the suite {suite} itself; leave it out")
    return settings


def _quick_defaults(config: GRPOConfig) -> GRPOConfig:
    """The defaults with ``--quick``, but for those that `_settled` sets once the flags are known."""
    return dataclasses.replace(quick_settings(config), eval_every=0, device=config.device)


def _settled(train: GRPOConfig, given: Set[str], *, quick: bool) -> GRPOConfig:
    """Sets what depends on the number of updates and on the model, where neither a flag nor a recipe says it."""
    if quick:
        quickened = quick_settings(dataclasses.replace(train, max_staleness=0))
        fitting = {name: getattr(quickened, name) for name in ("eval_every", "device")}
    else:
        fitting = {"eval_every": max(1, train.updates // 20)}
    if not train.eval_tasks or train.max_staleness:  # it could not evaluate during training
        fitting.pop("eval_every")
    return dataclasses.replace(train, **{name: value for name, value in fitting.items() if name not in given})


def _suite_flags(words: Sequence[str]) -> list[str]:
    """What a suite is about, unless the command line says something else: for `pretrained` a model, for `recurring` few tasks of
    a cabinet; other environments have few.
    """
    if flag_of(words, "recipe", ""):
        return []
    envs = flag_of(words, "env", GRPOConfig.env).split(",")
    cabinet = all("EH-Cabinet" in env for env in envs) and not flag_of(words, "agent", "")
    suites: dict[str, dict[str, str]] = {
        "pretrained": {"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "env": _PRETRAINED_ENVS[0], "eval-every": "0"},
        "recurring": {"env-args": '{"tasks": 96}'} if cabinet else {},
    }
    flags = suites.get(flag_of(words, "suite", ""), {})
    return [word for name, value in flags.items() if not flag_of(words, name, "") for word in (f"--{name}", value)]


def _sweeps(words: list[str]) -> list[list[str]]:
    """Returns the command line of each sweep: the given one, or one for each environment of the suite `pretrained`."""
    if flag_of(words, "suite", "") != "pretrained" or flag_of(words, "env", "") or flag_of(words, "recipe", ""):
        return [words]
    out = Path(flag_of(words, "out", str(_FOLDER)))
    return [[*words, "--env", env, "--out", str(out / env)] for env in _PRETRAINED_ENVS]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(width=None if sys.stdout.isatty() else 160)  # a log file has room for the tables
    with errors_in_one_line(console):
        try:
            sweeps = [parse(line) for line in _sweeps(words)]
            for train in (settings.train for settings in sweeps):
                # Otherwise every run would report a missing backend.
                if train.env_workers == "local" and not train.agent:
                    make_environment(spec_of(train.env), train.environment_args()).close()
            failed = [name for settings in sweeps for name in sweep(settings, console)]
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command continues from here") from None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
