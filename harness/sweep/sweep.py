"""The command: runs the paper's experiments and ablations on any environment and model, several runs at once.

Every run is a subprocess on this machine. After a kill, start the same command again: it skips the runs that have ended, and
continues the others from their checkpoints. `harness.report` draws the figures.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from eh_gym import TTIHorizon
from eh_gym.errors import ConfigError
from eh_gym.ranges import Range, check_fields
from harness.records.files import lock_folder
from harness.records.run_folder import prepare
from harness.settings.command_line import flag_of, given_flags
from harness.settings.command_line import parse as parse_flags
from harness.settings.grpo import FIRST_FLAGS, GRPOConfig, flat_settings, from_recipe
from harness.settings.recipe import QUICKSTART, read_recipe
from harness.settings.section import changed
from harness.sweep.jobs import Job, cpu_cores, job_slots, run_jobs
from harness.sweep.manifest import has_ended, run_name, write_manifest
from harness.sweep.suites import PAPER_SUITES, suite_arms, suite_file
from harness.training.command import recipe_config

if TYPE_CHECKING:
    from harness.sweep.analysis import SuiteTable

_PAPER_UPDATES = 200  # for which TTI's stages are

__all__ = ["Sweep", "parse", "print_table", "read_tables", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """Runs the paper's experiments and prints their tables. It also takes every flag of harness.grpo.

    If the command is started again, it skips the runs that have ended and continues the others.
    """

    suite: Literal["saturation", "convergence", "comparison", "percentile", "headroom", "ema",
                   "learning", "pretrained", "recurring", "all"]  # fmt: skip
    """saturation: success by fixed K. convergence: K from below and from above. comparison: elastic against fixed K and
    schedules. percentile, headroom, ema: the ablations. learning: which default learns most per token. pretrained: the
    paper's questions with a pretrained model, by default SmolLM2 on EH-CabinetLocked. recurring: a horizon for each task, by
    default on 96 tasks of EH-Cabinet. all: the paper's six, which share runs."""
    train: GRPOConfig
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
    recipe: str = QUICKSTART
    """The settings to begin with, as for harness.grpo."""

    @property
    def out(self) -> Path:
        """The folder of the sweep. Several suites in one folder share their runs."""
        return self.train.out or Path("runs/sweep")

    @property
    def suites(self) -> Sequence[str]:
        """The suites to run."""
        return PAPER_SUITES if self.suite == "all" else (self.suite,)

    def arms(self, suite: str) -> dict[str, tuple[Mapping[str, Any], GRPOConfig]]:
        """Returns for each arm of a suite its own settings, by the names of their flags, and all of its settings.

        All arms are evaluated at the same K, unless the suite says a larger one for an arm.

        Raises:
            ConfigError: An arm has impossible settings.
        """
        train, found = self.train, {}
        for label, own in suite_arms(suite, quick=self.quick).items():
            k = max(own.get("eval_horizon", 0), train.evaluation_horizon)
            config = dataclasses.replace(train, horizon=self._horizon(own["wrapper"]))
            found[label] = own, changed(config, **{**own, "eval_horizon": k})
            if own.get("k0", 0) > k and train.evaluation.horizon is None:
                raise ConfigError(f"the arm {label} of the suite {suite} would be evaluated at K = {k}; raise --k-max")
        return found

    def _horizon(self, wrapper: str) -> Any:
        """The horizon of an arm without its own settings.

        If it is another one than the command line's, it is the recipe's, with the bounds that the command line gives. Schedules
        are stretched to the number of updates.
        """
        given, updates = self.train.horizon, self.train.updates
        horizon: Any = given
        if wrapper != self.train.wrapper:
            before, horizon = (
                from_recipe(self.recipe, {"wrapper": name}).horizon for name in (self.train.wrapper, wrapper)
            )
            for bound in ("k_max",) if wrapper == "linear" else ("k_min", "k_max"):  # a linear one begins at its k_min
                told = getattr(given, bound, None)
                if told != getattr(before, bound, None) and hasattr(horizon, bound):
                    horizon = dataclasses.replace(horizon, **{bound: told})
        if wrapper == "linear":
            return dataclasses.replace(horizon, delta=(horizon.k_max - horizon.k_min) / updates)
        if wrapper == "tti":  # a run of under 4 updates has fewer stages
            most = getattr(given, "k_max", math.inf)
            stages = {updates * first // _PAPER_UPDATES: min(k, most) for first, k in TTIHorizon().stages.items()}
            return dataclasses.replace(horizon, stages=stages)
        return horizon


TRAIN = (sys.executable, "-m", "harness.grpo")


def sweep(settings: Sweep, console: Console, program: Sequence[str] = TRAIN) -> list[str]:
    """Carries out a sweep and prints its tables. Returns the names of the runs that failed.

    `program` is the command that carries out a run, Python first. ``--resume FOLDER`` is appended to it.

    Raises:
        ConfigError: A setting is wrong, another sweep works in the folder, or the folder has the suite with other settings.
    """

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    train, out, quick = settings.train, settings.out, settings.quick
    seeds = range(train.seed, train.seed + settings.seeds)
    arms = {suite: settings.arms(suite) for suite in settings.suites}
    runs: dict[str, tuple[GRPOConfig, str]] = {}
    for seed in seeds:  # every arm has its first run early
        for suite, labels in arms.items():
            for label, (_, arm) in labels.items():
                config = dataclasses.replace(arm, seed=seed)
                config = dataclasses.replace(config, out=out / "runs" / run_name(config))
                runs.setdefault(run_name(config), (config, f"{suite} {label} seed {seed}"))
    if settings.ranks > 1:  # --standalone takes a free port
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(settings.ranks))
        program = (program[0], *torchrun, *program[1:])
    slots = _slots(settings)
    threshold = settings.threshold or (0.8 if quick else 0.5)
    busy = f"another sweep, or a run of it, works in {out}; wait for its end, or choose another --out"
    with lock_folder(out, busy) as lock:
        for suite in arms:
            write_manifest(out, suite, train, arms[suite], seeds, quick=quick, threshold=threshold)
        open_ = {name: run for name, run in runs.items() if not has_ended(out / "runs" / name)}
        begun, done = sum((out / "runs" / name / "metrics.jsonl").exists() for name in open_), len(runs) - len(open_)
        listed = ", ".join(f"{suite} ({len(labels)} arms)" for suite, labels in arms.items())
        shared = settings.seeds * sum(map(len, arms.values())) - len(runs)
        say(f"{listed} on {train.environment.env} with {train.model.model}, {train.updates} updates a run, in {out}")
        say(
            f"{len(runs)} runs ({settings.seeds} seeds, {shared} shared between suites): {done} done, {begun} to continue, "
            f"{len(open_) - begun} to begin; {min(len(slots), len(open_))} at a time"
        )
        jobs = []
        for name, (config, title) in open_.items():
            if not (out / "runs" / name / "config.json").exists():
                prepare(config)
            jobs.append(Job(name, title, (*program, "--resume", str(config.out)), out / "logs" / f"{name}.log"))
        codes = run_jobs(jobs, slots, say, done=done, lock=lock)
    for table in read_tables(out, settings.suites):
        print_table(table, console)
    failed = [name for name, code in codes.items() if code]
    if failed:
        say(f"{len(failed)} of {len(runs)} runs failed; start the same command again to continue them:")
        for name in failed:
            say(f"  {runs[name][1]}: {out / 'logs' / f'{name}.log'}")
    return failed


def read_tables(out: Path, suites: Sequence[str]) -> list[SuiteTable]:
    """Returns the tables of suites, from the runs that have ended."""
    from harness.sweep.analysis import tables_of  # pandas takes a second to import
    from harness.sweep.runs import read_suites

    return [table for table, _ in tables_of(read_suites([out])) if table.suite in suites]


def print_table(table: SuiteTable, console: Console) -> None:
    """Prints a suite's table and its notes, then the paper's own numbers."""
    file = suite_file(table.suite)
    cells = table.cells([key for keys in file.columns for key in keys])
    console.print(f"\n{table.suite}: mean ± standard deviation over seeds", highlight=False)
    _print(console, (table.suite, *cells.columns), cells.itertuples())
    for note in table.notes:
        console.print(note, highlight=False, soft_wrap=True)
    for paper in file.paper:
        console.print(paper["title"], highlight=False, soft_wrap=True)
        _print(console, (table.suite, *paper["columns"]), [(label, *texts) for label, texts in paper["rows"].items()])


def _print(console: Console, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    shown = Table(*headings)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def _slots(settings: Sweep) -> list[dict[str, str]]:
    """The slots for runs. With ``--sampler vllm-server`` there is one, because each run sends its weights to the servers."""
    train = settings.train
    gpus: list[str] = []
    if train.model.device in ("auto", "cuda"):
        from harness.machine.runtime import visible_gpus  # torch takes seconds to import

        gpus = visible_gpus()
    if train.model.device.startswith("cuda:"):
        raise ConfigError(
            f"--device {train.model.device} would put every run on one GPU; use --device cuda and CUDA_VISIBLE_DEVICES"
        )
    jobs = 1 if train.sampling.sampler == "vllm-server" else settings.jobs
    if settings.ranks > 1:
        train.check_ranks()
    return job_slots(jobs, gpus=gpus, per_job=settings.ranks, cores=cpu_cores(), threads=train.model.threads or 0)


def parse(words: Sequence[str]) -> Sweep:
    """Reads the settings from a command line.

    Raises:
        ConfigError: A flag is for a single run, or the suite sets it.
    """
    words = [*_suite_flags(words), *words]
    given, recipe = set(given_flags(words).values()), flag_of(words, "recipe")
    if "resume" in given:
        raise ConfigError("--resume is for a single run; a sweep resumes by itself, in its folder, --out")
    suite = flag_of(words, "suite")
    if "recipe" in suite_file(suite).defaults and not recipe:
        raise ConfigError(
            f"the suite {suite} needs --recipe with another environment; smollm2 is for small models on a CPU"
        )
    default: Any = Sweep(suite=tyro.MISSING, train=recipe_config(words), recipe=recipe or QUICKSTART)
    first = (*FIRST_FLAGS, *(f.name for f in dataclasses.fields(Sweep)))
    settings: Sweep = parse_flags(default, words, prog="python -m harness.sweep", first=first)
    check_fields(settings, change=lambda name: f"--{name}")
    for suite in settings.suites:
        varied = {name for arm in suite_arms(suite, quick=settings.quick).values() for name in arm}
        for name in sorted(given & varied - {"eval_horizon"}):  # an arm raises the given one
            raise ConfigError(f"--{name.replace('_', '-')} is set by the suite {suite} itself; leave it out")
    own = _settled(settings.train, given | _named_in(recipe), quick=settings.quick)
    return dataclasses.replace(settings, train=changed(settings.train, **own))


def _suite_flags(words: Sequence[str]) -> list[str]:
    """The flags that the suite has by default. Those about its environment go with it; a recipe is about an environment, too."""
    recipe, flags = flag_of(words, "recipe"), []
    other = recipe or flag_of(words, "env") or flag_of(words, "agent")
    for name, value in suite_file(flag_of(words, "suite")).defaults.items():
        if not (other and name in ("env", "env_args", "recipe")) and name not in _named_in(recipe):
            flags += [f"--{name.replace('_', '-')}", value]
    return flags


def _named_in(recipe: str) -> Set[str]:
    """The settings that a recipe names, by the names of their flags."""
    return flat_settings(read_recipe(recipe)).keys() if recipe else set()


def _settled(train: GRPOConfig, chosen: Set[str], *, quick: bool) -> dict[str, Any]:
    """The settings in which a sweep differs from a single run, unless a flag or a recipe gives them, by their flags."""
    own: dict[str, Any] = {"eval_every": max(1, train.updates // (12 if quick else 20))}
    if quick:  # fewer held-out episodes, and the tiny model on the CPU
        own |= {"eval_tasks": 64, "eval_rollouts": 8, "keep_checkpoints": 1}
        own |= {"device": "cpu"} if train.model.model == "tiny" else {}
    settled = {name: value for name, value in own.items() if name not in chosen}
    if not settled.get("eval_tasks", train.evaluation.tasks) or train.max_staleness:  # it could not evaluate meanwhile
        settled.pop("eval_every", None)
    return settled
