"""Writes the reference pages that come from the code: `python tools/reference.py`, with the `train` extra installed.

The pages are committed, so that they can be read without building anything; a test compares them with the code. Left out: the
API pages, which the site's builder makes from the docstrings.
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

from harness.evaluate import Evaluation
from harness.experiments.simulate.beyond import Comparison
from harness.plan import Plan
from harness.plan import default_for as plan_defaults
from harness.report import Report
from harness.run.metrics import glossary_markdown
from harness.settings.grpo import GRPOConfig
from harness.settings.presets import preset
from harness.simulate import Simulation
from harness.sweep import Sweep

ROOT = Path(__file__).parents[1]
_NOTE = "Made from the code by `python tools/reference.py`; a test compares the two."
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: What stands behind the fence; empty for commands.
        text: Its lines.
        line: Of its first line, counted from 1.
        not_run: Why no test runs it, from the comment `<!-- not run: WHY -->` in the line before; else None.
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
    """Each flag with the kind of its value, its default and what it says, from the very parser that the command uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro offers no other view of its parser
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
        "With a real model the defaults are the paper's. With `--model tiny` they are the quick start's, and others again on "
        "EH-BFCL and EH-AppWorld: `python -m harness.grpo --env EH-BFCL-v0 --help` shows those.",
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
        if config in (Plan, Sweep):  # those of harness.grpo are its flags too, and stand above
            rows = {name: row for name, row in rows.items() if name not in paper}
        if rows:
            lines += ["", f"## {command}", ""]
            lines += ["Beside all flags of harness.grpo:", ""] if config in (Plan, Sweep) else []
            lines += ["| flag | default | what it does |", "| --- | --- | --- |"]
        for name, (kind, default, text) in rows.items():
            shown = f"`{_cell(default)}`" if default else ""
            lines.append(f"| {' '.join((name, _cell(kind))).strip()} | {shown} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


def metrics_markdown() -> str:
    """The page of metrics."""
    return (
        "# Every metric\n\n"
        f"{_NOTE} `metrics.jsonl` has one line an update with these names, TensorBoard the same numbers; a name that is not here "
        f"is refused.\n\n{glossary_markdown()}\n"
    )


def not_run_markdown() -> str:
    """The page of the commands that are documented and not run by a test."""
    lines = [
        "# What no test runs",
        "",
        f"{_NOTE} Every other code block of the documentation is run. Of these the tests parse each command of this project with "
        "its own parser, so that at least the flags and their values are right.",
        "",
        "| page | why | commands |",
        "| --- | --- | --- |",
    ]
    for page in pages():
        for block in blocks(page):
            if block.not_run is not None:
                joined = [f" {line}".split(" #")[0].split() for line in block.text.replace("\\\n", " ").splitlines()]
                commands = "<br>".join(f"`{' '.join(words)}`" for words in joined if words)
                lines.append(f"| {page.relative_to(ROOT)} | {block.not_run} | {_cell(commands)} |")
    return "\n".join(lines) + "\n"


def pages() -> list[Path]:
    """The pages written by hand."""
    folders = (ROOT, ROOT / "docs", ROOT / "docs" / "extend", ROOT / "examples")
    return [page for folder in folders for page in sorted(folder.glob("*.md"))]


# Each command whose flags come from a dataclass, with the defaults that it has for a command line.
COMMANDS: dict[str, tuple[type, Callable[[Sequence[str]], Any]]] = {
    "harness.grpo": (GRPOConfig, preset),
    "harness.evaluate": (Evaluation, lambda _: Evaluation()),
    "harness.sweep": (Sweep, lambda words: Sweep(suite=tyro.MISSING, train=preset(words))),  # type: ignore[arg-type]
    "harness.plan": (Plan, plan_defaults),
    "harness.report": (Report, lambda _: tyro.MISSING_NONPROP),
    "harness.simulate": (Simulation, lambda _: Simulation()),
    "harness.experiments.simulate.beyond": (Comparison, lambda _: Comparison()),
}
WRITTEN = {"flags.md": flags_markdown, "metrics.md": metrics_markdown, "not-run.md": not_run_markdown}

if __name__ == "__main__":
    for page_name, write in WRITTEN.items():
        (ROOT / "docs" / "reference" / page_name).write_text(write())
