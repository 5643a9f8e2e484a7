"""The tables: the paper's numbers beside ours, arm by arm; a row for every run, whatever became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.experiments.report.runs import all_runs, read_suites
from harness.experiments.report.tables import Table, run_table, suite_tables

from .conftest import write_log, write_run


def tables(path: Path) -> list[Table]:
    (suite,) = read_suites([path])
    return suite_tables(suite, suite.table())


def cell(table: Table, row: str, column: str) -> str:
    """A cell by its row's label and its heading with its group's."""
    (cells,) = [cells for cells in table.rows if cells[0] == row]
    (place,) = [i for i in range(len(table.headings)) if table.heading_of(i) == column]
    return cells[place]


def test_the_paper_s_numbers_stand_beside_ours(sweep: Callable[..., Path]) -> None:
    success, tokens = tables(sweep(seeds=3, updates=6, only=("comparison",)))
    assert success.groups == (("this sweep", 5), ("the paper", 4))
    assert cell(success, "elastic", "the paper: AppWorld 7B") == "39.47\u00a0±\u00a02.38 / 56.87"
    assert cell(success, "K=50", "the paper: BFCL 14B") == "64.12 / 73.61"
    assert cell(success, "elastic", "n") == "3"
    assert "\u00a0±\u00a0" in cell(success, "elastic", "mean@k %")
    assert cell(tokens, "elastic", "the paper: tokens to 50 %") == "36.28M"
    assert cell(tokens, "K=15", "the paper: tokens to 50 %") == ""  # the paper has no such row
    assert cell(tokens, "K=50", "saved of baseline's %").startswith("0.0")


def test_runs_given_one_by_one_have_no_paper_beside_them(tmp_path: Path) -> None:
    success, _ = tables(write_run(tmp_path / "run", updates=3))
    assert success.groups == ()
    assert success.rows[0][:2] == ("elastic", "1")


def test_every_run_has_a_row(tmp_path: Path) -> None:
    ended = write_run(tmp_path / "ended", updates=3, ceiling=0.5, k_from=20, k_to=20)
    write_log(ended, updates=1, tasks=1)
    empty = write_run(tmp_path / "empty", updates=3, ended=False)
    (empty / "metrics.jsonl").write_text("")
    table = run_table(all_runs(read_suites([ended, empty])), "page.html")
    rows = {row[0]: dict(zip(table.headings, row, strict=True)) for row in table.rows}
    assert (rows["ended"]["updates"], rows["ended"]["last K"], rows["ended"]["state"]) == ("3 of 3", "20.0", "ended")
    assert (rows["empty"]["updates"], rows["empty"]["last K"], rows["empty"]["state"]) == (
        "0 of 3",
        "—",
        "no metrics yet",
    )
    assert table.links == ("page.html#run=0", "")
    assert run_table(all_runs(read_suites([ended])), "").links == ("",)
