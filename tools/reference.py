"""Writes the reference pages that are made from the code: flags.md, metrics.md and not-run.md.

    python tools/reference.py    # needs the `train` extra

The pages are committed, so they can be read without building the site. A test compares them with the code. The API pages are
made elsewhere: the site's builder takes them from the docstrings.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from markdown_it import MarkdownIt

from harness.config import GRPOConfig, preset
from harness.evaluate import Evaluation
from harness.metrics import glossary_markdown
from harness.plan import Plan
from harness.plan import default_for as plan_defaults
from harness.report.__main__ import Report
from harness.simulate.__main__ import Simulation
from harness.simulate.beyond import Comparison
from harness.sweep import Sweep

ROOT = Path(__file__).parents[1]
_NOTE = "`python tools/reference.py` makes this page from the code, and a test compares the two."
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: The word after the opening fence; empty for commands.
        text: The lines of the block.
        line: The number of the first of these lines, counted from 1.
        not_run: The reason why no test runs the block, from the comment `<!-- not run: WHY -->` in the line before; None if there
            is no such comment.
    """

    language: str
    text: str
    line: int
    not_run: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    lines = text.splitlines()
    found = []
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.map is not None:
            start = token.map[0]
            mark = _NOT_RUN.search(lines[start - 1]) if start else None
            found.append(Block(token.info.strip(), token.content, start + 2, mark[1] if mark else None))
    return found


def flags(config: type, default: Any) -> dict[str, tuple[str, str, str]]:
    """Each flag with the type of its value, its default and its help text, from the parser that the command uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to show its parser
        parser = tyro.extras.get_parser(config, default=default)
    rows = {}
    for action in parser._actions:
        text, found, rest = str(action.help).rpartition(" (default: ")
        text = text if found else str(action.help).removesuffix(" (required)")
        if action.dest != "help":
            name = " ".join(f"`{option}`" for option in action.option_strings)
            kind = str(action.metavar or "") if action.nargs != 0 else ""
            if action.choices:
                kind, text = "", f"{text} One of {', '.join(f'`{choice}`' for choice in action.choices)}."
            if not action.option_strings:
                name, kind = f"`{action.dest}`", "one or more"
            rows[name] = (kind, rest.removesuffix(")") if found else "", text)
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def flags_markdown() -> str:
    """The page of flags."""
    paper, quick = flags(GRPOConfig, preset(["--model", "X"])), flags(GRPOConfig, preset([]))
    lines = [
        "# Every flag",
        "",
        _NOTE,
        "",
        "## harness.grpo",
        "",
        "With a real model the defaults are the paper's. With `--model tiny` they are the quick start's. EH-BFCL and EH-AppWorld "
        "have other quick-start defaults: `python -m harness.grpo --env EH-BFCL-v0 --help` shows them.",
        "",
        "| flag | default | what it does |",
        "| --- | --- | --- |",
    ]
    for name, (kind, default, text) in paper.items():
        other = quick[name][1]
        defaults = f"`{default}`" if other == default else f"`{default}`; quick start `{other}`"
        lines.append(f"| {' '.join((name, _cell(kind))).strip()} | {_cell(defaults)} | {_cell(text)} |")
    for command, (config, default_for) in COMMANDS.items():
        rows = {
            name: row for name, row in flags(config, default_for(["--model", "X"])).items() if config is not GRPOConfig
        }
        if config in (Plan, Sweep):  # these commands also take the flags of harness.grpo, which are listed above
            rows = {name: row for name, row in rows.items() if name not in paper}
        if rows:
            lines += ["", f"## {command}", ""]
            lines += ["In addition to all flags of harness.grpo:", ""] if config in (Plan, Sweep) else []
            lines += ["| flag | default | what it does |", "| --- | --- | --- |"]
        for name, (kind, default, text) in rows.items():
            shown = f"`{_cell(default)}`" if default else ""
            lines.append(f"| {' '.join((name, _cell(kind))).strip()} | {shown} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


def metrics_markdown() -> str:
    """The page of metrics."""
    return (
        "# Every metric\n\n"
        f"{_NOTE} `metrics.jsonl` has one line per update with these names. TensorBoard shows the same numbers. A run refuses a "
        f"metric that is not listed here.\n\n{glossary_markdown()}\n"
    )


def not_run_markdown() -> str:
    """The page of the documented commands that no test runs."""
    lines = [
        "# What no test runs",
        "",
        f"{_NOTE} The tests run every other code block of the documentation. They parse each command below, if it is this "
        "project's, with its own parser, so at least its flags and their values are right.",
        "",
        "| page | why | commands |",
        "| --- | --- | --- |",
    ]
    for page in pages():
        for block in blocks(page):
            if block.not_run is not None:
                joined = [line.split(" #")[0].split() for line in block.text.replace("\\\n", " ").splitlines()]
                commands = "<br>".join(f"`{' '.join(words)}`" for words in joined if words)
                lines.append(f"| {page.relative_to(ROOT)} | {block.not_run} | {_cell(commands)} |")
    return "\n".join(lines) + "\n"


def pages() -> list[Path]:
    """The pages that are written by hand."""
    folders = (ROOT, ROOT / "docs", ROOT / "docs" / "extend", ROOT / "docs" / "reference", ROOT / "examples")
    return [page for folder in folders for page in sorted(folder.glob("*.md")) if page.name not in WRITTEN]


# Each command whose flags come from a dataclass, with a function that returns its defaults for a command line.
COMMANDS: dict[str, tuple[type, Callable[[Sequence[str]], Any]]] = {
    "harness.grpo": (GRPOConfig, preset),
    "harness.evaluate": (Evaluation, lambda _: Evaluation()),
    "harness.sweep": (Sweep, lambda words: Sweep(suite=tyro.MISSING, train=preset(words))),  # type: ignore[arg-type]
    "harness.plan": (Plan, plan_defaults),
    "harness.report": (Report, lambda _: tyro.MISSING_NONPROP),
    "harness.simulate": (Simulation, lambda _: Simulation()),
    "harness.simulate.beyond": (Comparison, lambda _: Comparison()),
}
WRITTEN = {"flags.md": flags_markdown, "metrics.md": metrics_markdown, "not-run.md": not_run_markdown}

if __name__ == "__main__":
    for page_name, write in WRITTEN.items():
        (ROOT / "docs" / "reference" / page_name).write_text(write())
