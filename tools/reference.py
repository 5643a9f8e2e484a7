"""Writes the reference pages that are made from the code: flags.md and metrics.md.

    python tools/reference.py    # needs the `train` extra

The pages are committed, so they can be read without building the site. A test compares them with the code. The API
pages are made elsewhere: the site's builder takes them from the docstrings.
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

from harness.evaluate import defaults
from harness.export.export import Export
from harness.records.glossary import glossary_markdown
from harness.report.report import Report
from harness.settings.command_line import parser_of
from harness.settings.horizon import HORIZON
from harness.settings.sampling import SAMPLING
from harness.sweep.sweep import Sweep
from harness.training.command import Command, recipe_config, resumable

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
        not_run: The reason why no test runs the block, from the comment `<!-- not run: WHY -->` in the line before;
            None if there is no such comment.
    """

    language: str
    text: str
    line: int
    not_run: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    lines = text.splitlines()
    fenced = []
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.map is not None:
            start = token.map[0]
            mark = _NOT_RUN.search(lines[start - 1]) if start else None
            fenced.append(Block(token.info.strip(), token.content, start + 2, mark[1] if mark else None))
    return fenced


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


def flags(default: Any) -> dict[str, Flag]:
    """Each flag by name, from the parser that the command uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to show its parser
        parser = parser_of(default)
    by_name = {}
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
                named = all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in action.choices)
                kind, text = "", text if named else f"{text} One of {', '.join(f'`{c}`' for c in action.choices)}."
            if not action.option_strings:
                name, kind = f"`{action.metavar or action.dest}`", ""
            by_name[name] = Flag(panel, name, kind, rest.removesuffix(")") if has_default else "", text)
    return by_name


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("\n", " ")


def flags_markdown() -> str:
    """The page of flags: one row for each, under the first command that takes it."""
    flags_of = {command: flags(default_for(["--recipe", "paper"])) for command, default_for in COMMANDS.items()}
    quick = flags(COMMANDS["harness.grpo"]([]))
    lines = [
        "# Every flag",
        "",
        f"`python -m harness.COMMAND --help-all` prints the same. {_NOTE} The first default "
        "is that of `--recipe paper`; that of quickstart or another command follows if it differs. harness.sweep "
        "takes all flags of harness.grpo.",
        "",
        f"With `--resume` a run keeps its settings, but for {', '.join(map(_flag, resumable()))}.",
    ]
    shown: set[tuple[str, str]] = set()  # names with their types: --tasks is a file or a number
    for command, its_flags in flags_of.items():
        panel = None
        for name, flag in its_flags.items():
            if (name, flag.kind) in shown:
                continue
            shown.add((name, flag.kind))
            if flag.panel != panel:
                title = f"{command}: {flag.panel}" if command == "harness.grpo" else command
                lines += [] if panel and command != "harness.grpo" else ["", f"## {title}", "", *_HEAD]
                panel = flag.panel
            defaults = [f"`{flag.default}`"] * bool(flag.default)
            if command == "harness.grpo" and quick[name].default != flag.default:
                defaults.append(f"quick start `{quick[name].default}`")
            for other in ("harness.evaluate", "harness.export", "harness.report"):
                its = flags_of[other].get(name)
                if other != command and its is not None and its.kind == flag.kind:
                    same = its.default == flag.default
                    defaults.append(other.removeprefix("harness.") + ("" if same else f" `{its.default}`"))
            lines.append(_row(f"{name} {flag.kind}".strip(), ", ".join(defaults), flag.text))
        lines += _chosen_flags(its_flags) if command == "harness.grpo" else []
    return "\n".join(lines) + "\n"


def _chosen_flags(shown: dict[str, Flag]) -> list[str]:
    """A table of the flags that the other horizons and samplers have otherwise than those already shown."""
    lines, seen = ["", "## harness.grpo: other horizons and samplers", "", *_HEAD], [*shown.values()]
    for choice in (HORIZON, SAMPLING):
        for name in choice.classes:
            its_flags = flags(COMMANDS["harness.grpo"](["--recipe", "paper", f"--{choice.flag}", name]))
            new = [flag for key, flag in its_flags.items() if flag not in seen and key != f"`--{choice.flag}`"]
            seen += new
            lines += [_row(f"{f.name} {f.kind}".strip(), f"`{f.default}` with {name}", f.text) for f in new]
    return lines


_HEAD = ("| flag | default, other commands | what it does |", "| --- | --- | --- |")


def metrics_markdown() -> str:
    """The page of metrics."""
    return (
        "# Every metric\n\n"
        "`metrics.jsonl` has one line per update with these names. TensorBoard shows the same numbers. Your own "
        f"controller adds its `custom/…`. {_NOTE}\n\n{glossary_markdown()}\n"
    )


def pages() -> list[Path]:
    """The pages that are written by hand."""
    docs = ROOT / "docs"
    folders = (ROOT, docs, *(docs / name for name in ("extend", "reference")), ROOT / "examples", ROOT / "hubs")
    return [page for folder in folders for page in sorted(folder.glob("*.md")) if page.name not in WRITTEN]


# Each command whose flags come from a dataclass, with a function that returns its defaults for a command line.
COMMANDS: dict[str, Callable[[Sequence[str]], Any]] = {
    "harness.grpo": lambda words: Command(recipe_config(words)),
    "harness.evaluate": defaults,
    "harness.export": lambda _: Export(what=tyro.MISSING, folder=tyro.MISSING, out=tyro.MISSING),
    "harness.sweep": lambda words: Sweep(train=recipe_config(words)),
    "harness.report": lambda _: Report(runs=tyro.MISSING),
}
WRITTEN = {"flags.md": flags_markdown, "metrics.md": metrics_markdown}

if __name__ == "__main__":
    for page_name, write in WRITTEN.items():
        (ROOT / "docs" / "reference" / page_name).write_text(write())
