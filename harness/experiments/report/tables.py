"""The tables of the report: the numbers of a suite next to the paper's own, and a row for each run and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.evaluation.folder import KeptEvaluation
from harness.evaluation.scores import missing_part, score_conditions, score_rows
from harness.experiments.analysis import horizon_series
from harness.experiments.paper import PAPER, PaperTable
from harness.experiments.report.runs import StoredArm, StoredRun, Suite
from harness.experiments.suite_table import SuiteTable

__all__ = ["DEFINITIONS", "Table", "evaluation_table", "run_table", "score_tables", "suite_tables"]


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        caption: What it shows, and the units.
        groups: Headings that span several columns, and the number of these columns. The first column, the label, has none.
        headings: One heading per column, that of the label first.
        rows: The texts of each row, the label first.
        links: The address for the label of each row, or an empty text. Empty if no row has one.
    """

    caption: str
    groups: tuple[tuple[str, int], ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    links: tuple[str, ...] = ()

    def starts_group(self, column: int) -> bool:
        """Whether a group of columns begins with this one."""
        return column in self._firsts()

    def heading_of(self, column: int) -> str:
        """Returns the heading, after that of its group unless this is the first. On a phone every cell shows it."""
        group = sum(column >= first for first in self._firsts()) - 1
        return f"{self.groups[group][0]}: {self.headings[column]}" if group > 0 else self.headings[column]

    def _firsts(self) -> list[int]:
        return [1 + sum(columns for _, columns in self.groups[:i]) for i in range(len(self.groups))]


# The columns of each table. A table with more columns would be wider than the page.
_SUCCESS = ("mean_at_k", "best_at_k", "greedy", "peak")
_TOKENS = (
    *("tokens_to_threshold", "savings", "tokens_at_peak"),
    *("tokens_per_update", "tokens_middle", "tokens_end"),
)
_TOGETHER = {"comparison": (_SUCCESS, _TOKENS)}
_TITLES = {_SUCCESS: "Success", _TOKENS: "Tokens"}

DEFINITIONS = (
    ("K", "the most steps (model messages) that an episode may take; an episode that K stops counts as a failure"),
    ("mean@k", "the share of successful episodes, with k sampled episodes per held-out task, at K = k_max"),
    ("best@k", "the share of held-out tasks that at least one of the k episodes solves"),
    ("greedy", "the share of successful episodes without sampling, with one episode per held-out task"),
    (
        "success at its K",
        "the share of the same held-out episodes that succeed within the K that the model was trained with",
    ),
    ("peak", "the highest success in the course of training; the maximum of noisy values is too high"),
    (
        "tokens",
        "the tokens of the training episodes: prompts, observations and actions, each counted once, without evaluations and "
        "warm start",
    ),
    (
        "tokens to threshold",
        "the training tokens until the success first reaches the threshold, interpolated linearly",
    ),
    (
        "saved",
        "1 - tokens to threshold / the baseline's tokens to threshold, per seed; negative if more tokens were needed; "
        "learning, pretrained and recurring count all tokens instead",
    ),
    ("in the middle, at the end", "tokens per update between 50 and 85 % of the run, and in its last 10 %"),
    (
        "final K, K std",
        "the controller's real K after the last update; the standard deviation of K over the last quarter",
    ),
    (
        "plateau",
        "the best K, and every K that is reached from it without a gap and whose mean success is within one pooled standard "
        "error of the best, or within 2 points",
    ),
    ("±", "the sample standard deviation over seeds (n - 1); n is the number of runs that have ended"),
)


def suite_tables(suite: Suite, table: SuiteTable) -> list[Table]:
    """Returns the tables of a suite. If the paper has a table with the same arms, its columns follow."""
    paper = list(PAPER.get(suite.name, ()))
    texts = table.cells()
    ends = {label: n for label, n, _ in table.rows}
    keys = [column.key for column in table.columns]
    tables = []
    for i, together in enumerate(_TOGETHER.get(table.suite, (tuple(keys),))):
        chosen = [keys.index(key) for key in together]
        theirs = paper[i] if i < len(paper) else None
        rows = []
        for cells in texts:
            label, numbers = cells[0], cells[1:]
            row = [label, str(ends[label]), *(numbers[j] for j in chosen)]
            if theirs is not None:
                row += theirs.rows.get(label, ("",) * len(theirs.columns))
            rows.append(tuple(row))
        headings = ["arm", "n", *(table.columns[j].heading for j in chosen)]
        groups: list[tuple[str, int]] = []
        caption = f"{_TITLES.get(together, 'Results')}: mean ± standard deviation over n seeds."
        if theirs is not None:
            headings += theirs.columns
            groups = [("this sweep", len(chosen) + 1), ("the paper", len(theirs.columns))]
            caption += f" {_sentence(theirs)}"
        tables.append(Table(caption, tuple(groups), tuple(headings), tuple(map(_together, rows))))
    return tables


def run_table(runs: Sequence[tuple[Suite, StoredArm, StoredRun]], trajectories: str) -> Table:
    """Returns a table with a row for each run, finished or not.

    Args:
        runs: The runs, in the order of the page of the episodes.
        trajectories: The address of that page; empty if there is none.
    """
    rows = []
    for suite, arm, run in runs:
        after = (run.evaluation.get("after") or {}).get("sampled") or {}
        series, curve = horizon_series(run.rows), run.curve(held_out=suite.held_out)
        rows.append(
            (
                run.folder.name,
                f"{suite.name}: {arm.label}",
                str(run.seed),
                f"{len(run.rows)} of {run.config.get('updates', '?')}",
                f"{series[-1]:.1f}" if series else "—",
                f"{100 * curve[-1].success:.1f}" if curve else "—",
                f"{100 * after['mean_at_k']:.1f}" if after else "—",
                f"{run.rows[-1]['tokens/total']:,.0f}" if run.rows else "—",
                f"{run.rows[-1]['time/total_s']:,.0f}" if run.rows else "—",
                run.unfinished or "ended",
            )
        )
    return Table(
        "Every run of this report. Success % is the last known success during training; mean@k % is measured after training.",
        (),
        ("run", "arm", "seed", "updates", "last K", "success %", "mean@k %", "tokens", "seconds", "state"),
        tuple(rows),
        tuple(f"{trajectories}#run={i}" if trajectories and run.episodes else "" for i, (*_, run) in enumerate(runs)),
    )


def evaluation_table(evaluations: Sequence[KeptEvaluation], links: Sequence[str]) -> Table:
    """Returns a table with a row for each evaluation, finished or not.

    Args:
        evaluations: The evaluations, in the order of the page of the episodes.
        links: The address of the episodes of each one; empty if there is none.
    """
    rows = []
    for kept in evaluations:
        settings, result = kept.settings, kept.result
        name = settings.get("model") or settings.get("policy")
        row = [
            str(kept.folder),
            f"{name} on {settings.get('env')}, {settings.get('split')}",
            str(settings.get("horizon")),
        ]
        if result is None:
            rows.append((*row, *["—"] * 5, "not ended"))
            continue
        mean, best = (_share(result[f"{kind}_at_k"], result[f"{kind}_interval"]) for kind in ("mean", "best"))
        length = result.get("length_success_mean")
        rows.append(
            (
                *row,
                f"{result['tasks']} x {result['rollouts']}",
                mean,
                best,
                f"{length:.1f}" if length is not None else "—",
                f"{100 * result['truncated']:.1f}",
                "ended",
            )
        )
    return Table(
        "Every evaluation of this report, with 95 % intervals. Steps is the mean of the successes. Truncated episodes were "
        "stopped before the task's rules ended them.",
        (),
        ("evaluation", "what", "K", "tasks x k", "mean@k %", "best@k %", "steps", "truncated %", "state"),
        tuple(rows),
        tuple(links),
    )


def score_tables(evaluations: Sequence[KeptEvaluation]) -> list[Table]:
    """Returns a table with the scores of evaluations of a benchmark.

    It has a row for each score of an evaluation that has ended and whose tasks have categories, difficulties or scenarios. The
    scores of a part of a split come before, in a table of their own.
    """
    parts: list[tuple[str, ...]] = []
    whole: list[tuple[str, ...]] = []
    for kept in evaluations:
        settings, result = kept.settings, kept.result
        if result is None or not result.get("parts"):  # a folder of an older version has no parts
            continue
        who, where = str(settings.get("model") or settings.get("policy")), f"{settings['env']}, {settings['split']}"
        how = score_conditions(settings, result)
        rows = parts if missing_part(settings, result) else whole
        rows += [(who, where, what, share, interval, how) for what, share, interval in score_rows(result)]
    headings = ("who", "tasks", "score", "%", "95 %", "how")
    captions = (
        "Not official: scores of a part of the tasks, in percent, with 95 % intervals.",
        "Scores by the benchmarks' own measures, in percent, with 95 % intervals.",
    )
    return [
        Table(words, (), headings, tuple(rows)) for words, rows in zip(captions, (parts, whole), strict=True) if rows
    ]


def _share(share: float, interval: Sequence[float]) -> str:
    return f"{100 * share:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _together(row: tuple[str, ...]) -> tuple[str, ...]:
    """Keeps a number and its spread on one line."""
    return tuple(text.replace(" ± ", "\u00a0±\u00a0") for text in row)


def _sentence(theirs: PaperTable) -> str:
    return f"{theirs.title[0].upper()}{theirs.title[1:]}; the tasks and models differ, so compare order and shape, not level."
