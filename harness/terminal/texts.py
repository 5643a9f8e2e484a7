"""Lines and tables of text on a terminal. The template of the report's page shows the same tables."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import rich.table
from rich.cells import cell_len
from rich.console import Console


def say(console: Console, text: str, style: str = "") -> None:
    """Prints a text as it is: without colours for what looks like a number, and with no line broken."""
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


class Table(NamedTuple):
    """Rows of texts, each with its label first. A table whose headings are all empty is shown without them.

    `links` has an address, or "", for each label on a page.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    links: Sequence[str] = ()


def table_of_rows(title: str, rows: Sequence[Mapping[str, str]], links: Sequence[str] = ()) -> Table:
    """Makes a table of rows that have their texts by heading. A text that a row lacks is empty.

    >>> table_of_rows("", [{"run": "a"}, {"run": "b", "K": "5"}])
    Table(title='', headings=['run', 'K'], rows=[['a', ''], ['b', '5']], links=())
    """
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    return Table(title, headings, [[row.get(heading, "") for heading in headings] for row in rows], links)


def print_table(table: Table, console: Console) -> None:
    """Prints a table. One that is too wide is printed as several, each with the labels."""
    say(console, table.title, "italic")
    labels, *columns = zip(table.headings, *table.rows, strict=True)
    first = min(max(map(cell_len, labels)), 2 * console.width // 5)
    widths = [max(map(cell_len, column)) for column in columns]
    if first + 4 + sum(3 + width for width in widths) > console.width:  # then headings are wrapped
        widths = [max(map(cell_len, (*heading.split(), *texts))) for heading, *texts in columns]
    while columns:
        ends = accumulate((3 + width for width in widths), initial=first + 4)
        n = max(1, sum(end <= console.width for end in ends) - 1)
        shown, (headings, *rows) = rich.table.Table(), zip(labels, *columns[:n], strict=True)
        shown.show_header = any(table.headings)
        for heading, width in zip(headings, (first, *widths), strict=False):
            shown.add_column(heading, overflow="fold", width=min(width, console.width - first - 7))
        for row in rows:
            shown.add_row(*row)
        console.print(shown, markup=False)
        columns, widths = columns[n:], widths[n:]
