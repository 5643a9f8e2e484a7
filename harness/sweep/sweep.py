"""The command: compares the arms of the paper's experiments, or arms of one's own, in any environment, several runs at
once.

Every run is a subprocess on this machine. `harness.report` draws the figures.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from eh_gym import TTIHorizon
from eh_gym.errors import ConfigError
from eh_gym.ranges import Range, check_fields, near
from harness.records.files import lock_folder
from harness.records.run_folder import prepare
from harness.settings.command_line import flag_of, given_flags
from harness.settings.command_line import parse as parse_flags
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.recipe import QUICKSTART
from harness.settings.section import changed, flat
from harness.sweep.jobs import Job, cpu_cores, job_slots, run_jobs
from harness.sweep.manifest import has_ended, run_name, write_manifest
from harness.sweep.suites import ARMS, PAPER_SUITES, SUITES, suite_file
from harness.terminal.texts import print_table, say
from harness.training.command import recipe_config

if TYPE_CHECKING:
    from harness.sweep.analysis import SuiteTable

_PROG = "python -m harness.sweep"
_PAPER_UPDATES = 200  # for which TTI's stages are


@dataclass(frozen=True)
class Sweep:
    """Trains with several settings and seeds, and prints a table that compares them. It also takes every flag of
    harness.grpo.

    If the command is started again, it skips the runs that have ended and continues the others.
    """

    train: GRPOConfig
    arm: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An arm of your own: settings of harness.grpo, such as "wrapper=fixed,k0=30". Give --arm for each one, or
    --suite."""
    suite: str = ""
    """saturation: success by fixed K. convergence: K from below and from above. comparison: elastic against fixed K and
    schedules. percentile, headroom, ema: the ablations. learning: which default learns most per token. pretrained: the
    paper's questions with a pretrained model. recurring: a horizon for each task. tau2: long tickets. all: the paper's
    six, which share runs."""
    seeds: Annotated[int, Range(1)] = 3
    """The number of runs per arm. Their seeds count up from --seed."""
    jobs: Annotated[int, Range(0)] = 0
    """The number of runs at once. 0 takes one per GPU, or without GPUs one per --threads cores; with --threads 0 a run
    takes all cores. With --sampler vllm-server it is 1."""
    ranks: Annotated[int, Range(1)] = 1
    """The number of processes of a run, under torchrun, each with a GPU of its own. The paper's recipes need 8."""
    threshold: Annotated[float, Range(0, 1)] = 0.5
    """The success rate up to which tokens are counted."""
    recipe: str = QUICKSTART
    """The settings to begin with, as for harness.grpo."""

    @property
    def out(self) -> Path:
        return self.train.out or Path("runs/sweep")

    @property
    def suites(self) -> Sequence[str]:
        return PAPER_SUITES if self.suite == "all" else (self.suite or ARMS,)

    def arms(self, suite: str) -> dict[str, tuple[Mapping[str, Any], GRPOConfig]]:
        """Returns for each arm of a suite its own settings, by the names of their flags, and all of its settings.

        All arms are evaluated at the same K, unless the suite says a larger one for an arm.
        """
        train, by_label = self.train, {}
        arms = {text: self._read(text) for text in self.arm} if suite == ARMS else suite_file(suite).arms
        common = train.evaluation.horizon or max(
            train.evaluation_horizon, *(own.get("k_max", 0) for own in arms.values())
        )
        for label, own in arms.items():
            k = max(own.get("eval_horizon") or 0, common)
            config = dataclasses.replace(train, horizon=self._horizon(own.get("wrapper", train.wrapper)))
            by_label[label] = own, changed(config, **{**own, "eval_horizon": k})
            if own.get("k0", 0) > k and train.evaluation.horizon is None:
                raise ConfigError(f"the arm {label} would be evaluated at K = {k}; raise --k-max or --eval-horizon")
        return by_label

    def _read(self, arm: str) -> dict[str, Any]:
        named = re.split(r",(?=[A-Za-z][\w.-]*=)", arm)
        pairs = [(name.strip().replace("_", "-"), value) for name, _, value in (one.partition("=") for one in named)]
        if not all("=" in one for one in named):
            raise ConfigError(f'--arm must be settings with commas between, such as "wrapper=fixed,k0=30", got "{arm}"')
        switches = {"true": "--{}", "false": "--no-{}"}
        words = [switches.get(value.lower(), "--{}={}").format(name, value) for name, value in pairs]
        if {"seed", "out"} & {name for name, _ in pairs}:
            raise ConfigError(f'--arm "{arm}": every arm has the seeds and the folder of the sweep; leave them out')
        try:
            horizon = self._horizon(flag_of(words, "wrapper", self.train.wrapper))
            read = flat(parse_flags(dataclasses.replace(self.train, horizon=horizon), words, prog=_PROG))
        except ConfigError as error:
            raise ConfigError(f'--arm "{arm}": {error}') from error
        return {name: read[name] for name in given_flags(words).values()}

    def _horizon(self, wrapper: str) -> Any:
        """The horizon of an arm without its own settings: that of the command line or of the recipe, with the same
        bounds.

        Schedules are stretched to the number of updates.
        """
        given, updates = self.train.horizon, self.train.updates
        horizon: Any = given
        if wrapper != self.train.wrapper:
            horizon = from_recipe(self.recipe, {"wrapper": wrapper}).horizon
            for bound in ("k_max",) if wrapper == "linear" else ("k_min", "k_max"):  # a linear one begins at its k_min
                if hasattr(given, bound) and hasattr(horizon, bound):
                    horizon = dataclasses.replace(horizon, **{bound: getattr(given, bound)})
        if wrapper == "linear" and self.suite:
            return dataclasses.replace(horizon, delta=(horizon.k_max - horizon.k_min) / updates)
        if wrapper == "tti" and self.suite:  # a run of under 4 updates has fewer stages
            most = getattr(given, "k_max", math.inf)
            stages = {updates * first // _PAPER_UPDATES: min(k, most) for first, k in TTIHorizon().stages.items()}
            return dataclasses.replace(horizon, stages=stages)
        return horizon


TRAIN = (sys.executable, "-m", "harness.grpo")


def sweep(settings: Sweep, console: Console, program: Sequence[str] = TRAIN) -> list[str]:
    """Carries out a sweep and prints its tables. Returns the names of the runs that failed.

    `program` is the command that carries out a run, Python first. ``--resume FOLDER`` is appended to it.
    """
    tell = partial(say, console)
    train, out = settings.train, settings.out
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
    busy = f"another sweep, or a run of it, works in {out}; wait for its end, or choose another --out"
    with lock_folder(out, busy) as lock:
        for suite in arms:
            write_manifest(out, suite, train, arms[suite], seeds, settings.threshold)
        open_ = {name: run for name, run in runs.items() if not has_ended(out / "runs" / name)}
        begun, done = sum((out / "runs" / name / "metrics.jsonl").exists() for name in open_), len(runs) - len(open_)
        listed = ", ".join(f"{suite} ({len(labels)} arms)" for suite, labels in arms.items())
        tell(f"{listed} on {train.environment.env} with {train.model.model}, {train.updates} updates a run, in {out}")
        tell(
            f"{len(runs)} runs, {settings.seeds} for each arm: {done} done, {begun} to continue, {len(open_) - begun} "
            f"to begin; {min(len(slots), len(open_))} at a time"
        )
        jobs = []
        for name, (config, title) in open_.items():
            if not (out / "runs" / name / "config.json").exists():
                prepare(config)
            jobs.append(Job(name, title, (*program, "--resume", str(config.out)), out / "logs" / f"{name}.log"))
        codes = run_jobs(jobs, slots, tell, done=done, lock=lock)
    for table in read_tables(out, settings.suites):
        print_results(table, console)
    failed = [name for name, code in codes.items() if code]
    if failed:
        tell(f"{len(failed)} of {len(runs)} runs failed; start the same command again to continue them:")
        for name in failed:
            tell(f"  {runs[name][1]}: {out / 'logs' / f'{name}.log'}")
    return failed


def read_tables(out: Path, suites: Sequence[str]) -> list[SuiteTable]:
    from harness.sweep.analysis import suite_table  # pandas takes a second to import
    from harness.sweep.runs import read_suites

    return [suite_table(suite) for suite in read_suites([out]) if suite.name in suites]


def print_results(results: SuiteTable, console: Console) -> None:
    say(console, f"\n{results.suite}", "bold")
    for table in results.tables():
        print_table(table, console)
    for note in results.notes:
        say(console, note)


def _slots(settings: Sweep) -> list[dict[str, str]]:
    """The slots for runs. There is one if runs would share servers, because each run sends its weights to them."""
    train = settings.train
    gpus: list[str] = []
    if train.model.device in ("auto", "cuda"):
        from harness.machine.runtime import visible_gpus  # torch takes seconds to import

        gpus = visible_gpus()
    if train.model.device.startswith("cuda:"):
        raise ConfigError(
            f"--device {train.model.device} would put every run on one GPU; use --device cuda and CUDA_VISIBLE_DEVICES"
        )
    jobs = 1 if train.sampling.shares_servers else settings.jobs
    if settings.ranks > 1:
        train.check_ranks()
    return job_slots(jobs, gpus=gpus, per_job=settings.ranks, cores=cpu_cores(), threads=train.model.threads or 0)


def parse(words: Sequence[str]) -> Sweep:
    words = [word for word in words if word != "--"]
    given = set(given_flags(words).values())
    if "resume" in given:
        raise ConfigError("--resume is for a single run; a sweep resumes by itself, in its folder, --out")
    default = Sweep(train=recipe_config(words), recipe=flag_of(words, "recipe", QUICKSTART))
    settings = parse_flags(default, words, prog=_PROG, short=True)
    check_fields(settings, change=lambda name: f"--{name}")
    if bool(settings.arm) == bool(settings.suite):
        raise ConfigError('give --suite, or --arm for each arm: --arm "k0=10" --arm "wrapper=fixed,k0=30"')
    if settings.suite not in ("", *SUITES, "all"):
        raise ConfigError(f"no suite {settings.suite}{near(settings.suite, (*SUITES, 'all'))}")
    varied = {name for suite in settings.suites for arm in suite_file(suite).arms.values() for name in arm}
    for name in sorted(given & varied - {"eval_horizon"}):  # an arm raises the given one
        raise ConfigError(f"--{name.replace('_', '-')} is set by the suite {settings.suite} itself; leave it out")
    train, defaults = settings.train, {}
    if not {"eval_every", "max_staleness"} & given and train.evaluation.tasks and not train.evaluation.every:
        defaults["eval_every"] = train.updates // 20
    clone = "warm_start.max_optimal_steps"
    if settings.suite and not {"recipe", clone} & given:
        defaults[clone] = 9  # as in benchmarks/results; the quick start's clone has fewer
    return dataclasses.replace(settings, train=changed(train, **defaults))
