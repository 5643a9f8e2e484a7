"""Writes the reference pages that are made from the code: flags.md and metrics.md.

    python tools/reference.py    # needs the `train` extra

The pages are committed, so they can be read without building the site. A test compares them with the code. The API pages are
made elsewhere: the site's builder takes them from the docstrings.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from markdown_it import MarkdownIt

from harness.export import Export
from harness.report import Report
from harness.run.glossary import glossary_markdown
from harness.settings.command_line import parser_of
from harness.settings.evaluate import Evaluation
from harness.settings.old_flags import OLD_FLAGS
from harness.settings.presets import preset
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


@dataclass(frozen=True)
class Flag:
    """One flag of a command, as its parser has it.

    Attributes:
        panel: The panel of ``--help`` that shows it.
        name: Its options, or its name if it is positional.
        kind: The type of its value; empty for a switch, and for a choice.
        default: Its default; empty if it is required.
        text: Its help text.
    """

    panel: str
    name: str
    kind: str
    default: str
    text: str

    def row(self, default: str) -> str:
        """The row of a table, with the text of the default."""
        return f"| {' '.join((self.name, _cell(self.kind))).strip()} | {_cell(default)} | {_cell(self.text)} |"


def flags(default: Any) -> dict[str, Flag]:
    """Each flag by name, from the parser that the command uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to show its parser
        parser = parser_of(default)
    found = {}
    for group in parser._action_groups:
        panel = str(group.title).removesuffix(" options")
        for action in group._group_actions:
            if action.dest == "help":
                continue
            text, has_default, rest = str(action.help).rpartition(" (default: ")
            text = text if has_default else str(action.help).removesuffix(" (required)")
            name = " ".join(f"`{option}`" for option in action.option_strings)
            kind = str(action.metavar or "") if action.nargs != 0 else ""
            if action.choices:
                kind, text = "", f"{text} One of {', '.join(f'`{choice}`' for choice in action.choices)}."
            if not action.option_strings:
                name, kind = f"`{action.metavar or action.dest}`", ""
            found[name] = Flag(panel, name, kind, rest.removesuffix(")") if has_default else "", text)
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def flags_markdown() -> str:
    """The page of flags."""
    paper, quick = flags(preset(["--model", "X"])), flags(preset([]))

    def defaults(flag: Flag) -> str:
        other = quick[flag.name].default
        return f"`{flag.default}`" if other == flag.default else f"`{flag.default}`; quick start `{other}`"

    lines = [
        "# Every flag",
        "",
        f"What each command takes, and its defaults, as `python -m harness.COMMAND --help-all` prints them. {_NOTE}",
        "",
        "## harness.grpo",
        "",
        "With a real model the defaults are the paper's. With `--model tiny` they are the quick start's. EH-BFCL and EH-AppWorld "
        "have other quick-start defaults: `python -m harness.grpo --env EH-BFCL-v0 --help-all` shows them.",
        *_tables(paper.values(), defaults),
    ]
    for command, default_for in COMMANDS.items():
        if command == "harness.grpo":
            continue
        default = default_for(["--model", "X"])
        own = [flag for name, flag in flags(default).items() if not hasattr(default, "train") or name not in paper]
        lines += ["", f"## {command}"]
        lines += ["", "In addition to all flags of harness.grpo:"] if hasattr(default, "train") else []
        lines += _tables(own, lambda flag: f"`{flag.default}`" if flag.default else "")
    old = [(old, new, command) for command, names in OLD_FLAGS.items() for old, new in names.items()]
    lines += [
        "",
        "## Old spellings",
        "",
        "This version still takes them.",
        "",
        "| old | present | command |",
        "| --- | --- | --- |",
    ]
    for spelling, name in dict.fromkeys((old, new) for old, new, _ in old):
        commands = ", ".join(f"harness.{command}" for *names, command in old if names == [spelling, name])
        lines.append(f"| `{spelling}` | `{name}` | {commands} |")
    return "\n".join(lines) + "\n"


def _tables(found: Iterable[Flag], default: Callable[[Flag], str]) -> list[str]:
    """A table for each panel, under its name."""
    lines, panel = [], ""
    for flag in found:
        if flag.panel != panel:
            lines += ["", f"**{flag.panel}**"] if flag.panel not in ("options", "positional arguments") else []
            lines += ["", "| flag | default | what it does |", "| --- | --- | --- |"]
            panel = flag.panel
        lines.append(flag.row(default(flag)))
    return lines


def metrics_markdown() -> str:
    """The page of metrics."""
    return (
        "# Every metric\n\n"
        "`metrics.jsonl` has one line per update with these names. TensorBoard shows the same numbers. A run refuses any other "
        f"name, except your own controller's `custom/…`. {_NOTE}\n\n{glossary_markdown()}\n"
    )


def pages() -> list[Path]:
    """The pages that are written by hand."""
    docs = ROOT / "docs"
    folders = (ROOT, docs, *(docs / name for name in ("extend", "reference")), ROOT / "examples", ROOT / "hubs")
    return [page for folder in folders for page in sorted(folder.glob("*.md")) if page.name not in WRITTEN]


# Each command whose flags come from a dataclass, with a function that returns its defaults for a command line.
COMMANDS: dict[str, Callable[[Sequence[str]], Any]] = {
    "harness.grpo": preset,
    "harness.evaluate": lambda _: Evaluation(),
    "harness.export": lambda _: Export(what=tyro.MISSING, folder=tyro.MISSING, out=tyro.MISSING),
    "harness.sweep": lambda words: Sweep(suite=tyro.MISSING, train=preset(words)),
    "harness.report": lambda _: Report(runs=tyro.MISSING),
}
WRITTEN = {"flags.md": flags_markdown, "metrics.md": metrics_markdown}

if __name__ == "__main__":
    for page_name, write in WRITTEN.items():
        (ROOT / "docs" / "reference" / page_name).write_text(write())
