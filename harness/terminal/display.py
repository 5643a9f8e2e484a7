"""Shows a training run on the terminal: the plan, progress bars, one line per update, and the final table.

Everything that is shown is also in the run folder. If the output goes to a file, it has the lines without the bars.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eh_gym import HorizonController
from harness.records.glossary import LOOK_AT
from harness.records.metrics import mean_reward
from harness.settings.grpo import GRPOConfig
from harness.settings.section import in_python, table_of
from harness.settings.warm_start import WarmStart
from harness.terminal.texts import Table, print_table, say, table_of_rows
from harness.terminal.watch import RECENT, Watch, unreached
from harness.types.trajectory import Trajectory

_COLUMNS = {
    "success": ("rollout/success", "8.3f"),
    "ceiling": ("rollout/success_ceiling", "8.3f"),
    "length": ("rollout/length_mean", "7.1f"),
    "of succ.": ("rollout/length_success_mean", "8.1f"),
    "cut off": ("rollout/truncated", "8.3f"),
    "tokens": ("tokens/update", "8.0f"),
    "zero adv": ("train/zero_advantage_groups", "8.2f"),
    "entropy": ("train/entropy", "8.3f"),
    "seconds": ("time/update_s", "8.2f"),
}
"""What the line of an update shows after its number and its K: the heading, the metric and the form of each number."""


class Display:
    """Shows one run on a console. `names` are those of `in_python`."""

    def __init__(self, console: Console, names: Mapping[str, str] | None = None) -> None:
        self._console, self._names = console, names or {}

    def note(self, text: str) -> None:
        say(self._console, in_python(text, self._names))

    def plan(
        self, config: GRPOConfig, run_dir: Path, *, resume: bool, controller: HorizonController | None = None
    ) -> None:
        tasks, per_task = config.tasks_per_update, config.group_size
        played = config.environment
        evaluated = f"up to {config.evaluation.tasks} tasks of split {config.evaluation.split}"
        of = " (evaluation.horizon, not the controller's)" if controller else ""
        evaluated += f", K = {config.evaluation_horizon}{of}" + (
            "" if config.held_out else "; the run trains on this split, too"
        )
        rows = (
            ("environment", f"{played.agent or played.env} {json.dumps(played.env_args) if played.env_args else ''}"),
            ("model", config.model.model),
            ("horizon", repr(controller) if controller else _horizon_words(config)),
            ("updates", f"{config.updates} of {tasks} tasks x {per_task} = {tasks * per_task} episodes"),
            ("evaluation", evaluated if config.evaluation.tasks else "none"),
            ("run folder", str(run_dir)),
            ("look at", ", ".join(LOOK_AT)),
        )
        print_table(Table("resuming" if resume else "training", ("", ""), rows), self._console)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)

    @contextmanager
    def warm_start(self, start: WarmStart) -> Iterator[tuple[Callable[[object], None], Callable[[int, float], None]]]:
        with self._progress() as bars:
            played = bars.add_task("demonstrations", total=start.episodes * (2 if start.polish_batches else 1))
            bar = bars.add_task("warm start", total=start.max_batches + start.polish_batches)
            told = "warm start, loss {:.3f}".format
            yield lambda _: bars.advance(played), lambda n, loss: bars.update(bar, completed=n, description=told(loss))

    @contextmanager
    def episodes(self, what: str, count: int) -> Iterator[Callable[[object], None]]:
        with self._progress() as bars:
            bar = bars.add_task(what, total=count)
            yield lambda _: bars.advance(bar)

    @contextmanager
    def updates(self, first: int, total: int) -> Iterator[UpdateBars]:
        if first < total:
            headings = " ".join(f"{heading:>{form[0]}}" for heading, (_, form) in _COLUMNS.items())
            self.note(f"{'update':>6} {'K':>4} {headings}")
        with self._progress() as bars:
            yield UpdateBars(self, bars, first, total)

    def summary(
        self, config: GRPOConfig, run_dir: Path, evaluations: dict[str, Any], training_s: float, total_s: float
    ) -> None:
        if config.evaluation.tasks:
            tasks, kind = evaluations["after"]["sampled"]["tasks"], "held-out" if config.held_out else "training"
            title = f"success on {tasks} {kind} tasks at K = {config.evaluation_horizon}, before and after training"
            rows = []
            for when in ("before", "after"):
                sampled, greedy = evaluations[when]["sampled"], evaluations[when]["greedy"]
                row = {
                    "": when,
                    "sampled": f"{sampled['mean_at_k']:.3f}",
                    "95 % interval": "{:.3f} to {:.3f}".format(*sampled["mean_interval"]),
                    "greedy": f"{greedy['mean_at_k']:.3f}",
                    "steps": _number(sampled["length_success_mean"], ".1f"),
                    "steps / expert's": _number(sampled["steps_per_optimum"], ".2f"),
                }
                rows.append(row | mean_reward(sampled))
            print_table(table_of_rows(title, rows), self._console)
            if curve := evaluations["after"]["sampled"].get("saturation"):  # earlier versions measured none
                self.note(curve["advice"])
        self.note(
            f"{config.updates} update{'s'[: config.updates != 1]} in {training_s:.0f} s; {total_s:.0f} s since this "
            "start"
        )
        self.note(f"report:      python -m harness.report {quote(str(run_dir))}")
        self.note(f"model:       {run_dir / 'model'}")
        if "tensorboard" in config.run.tracker_names():
            self.note(f"TensorBoard: tensorboard --logdir {quote(str(run_dir.parent))}")


class UpdateBars:
    """The bars of a training run, and the line for each update."""

    def __init__(self, display: Display, bars: Progress, first: int, total: int) -> None:
        self._display, self._bars = display, bars
        self._updates = bars.add_task("updates", total=total, completed=first)
        self._episodes = bars.add_task("episodes", total=0)
        self._begun = 0
        self._watch = Watch()
        self._earned, self._checks_at = list[tuple[float, bool, float | None]](), min(first + RECENT, total) - 1

    def note(self, text: str) -> None:
        self._display.note(text)

    def batch_began(self, update: int, count: int) -> Callable[[Trajectory], None]:
        self._begun += count
        self._bars.update(self._episodes, total=self._begun, description=f"episodes up to update {update}")
        return lambda _: self._bars.advance(self._episodes)

    def update_ended(self, update: int, m: dict[str, float], played: Sequence[Trajectory], fault: str = "") -> None:
        self._bars.advance(self._updates)
        k = f"{m['horizon/k']:.0f}" if "horizon/k" in m else "none"
        numbers = " ".join(_number(m[metric], form) for metric, form in _COLUMNS.values())
        self._display.note(f"{update:6d} {k:>4} {numbers}")
        self._earned += [(t.reward, t.success, t.threshold) for t in played]
        low = unreached(self._earned) if update == self._checks_at else ""
        for warning in filter(None, (fault or self._watch.check(m), low)):
            self._display.note(f"note: update {update}: {warning}")


def _number(value: float | None, form: str) -> str:
    return "-".rjust(len(f"{0.0:{form}}")) if value is None or math.isnan(value) else f"{value:{form}}"


def _horizon_words(config: GRPOConfig) -> str:
    settings = table_of(config)["horizon"].get(config.wrapper, {})
    words = [f"{name} {value}" for name, value in settings.items()]
    words += [f"for each {config.horizon_key}"] if config.horizon_key else []
    return ": ".join(filter(None, [config.wrapper, ", ".join(words)]))
