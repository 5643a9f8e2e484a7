"""The documentation says what the code does: the glossary, the flags, the links."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from harness.config import GRPOConfig
from harness.evaluate import Evaluation
from harness.metrics import glossary_markdown
from harness.report.__main__ import Report
from harness.sweep import Sweep

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
FLAG_PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("harness", "experiments", "report", "reuse", "training")),
]


def test_the_glossary_in_the_docs_is_the_code_s() -> None:
    assert glossary_markdown() in (ROOT / "docs" / "harness.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", FLAG_PAGES, ids=lambda p: p.name)
def test_flags_in_the_docs_exist(page: Path) -> None:
    commands = (GRPOConfig, Evaluation, Sweep, Report)
    known = {f.name.replace("_", "-") for command in commands for f in dataclasses.fields(command)} | {"help"}
    known |= {f"no-{name}" for name in known}
    used = set(re.findall(r"--([a-z][a-z0-9-]+)", page.read_text()))
    assert used <= known, used - known


def test_the_readme_is_short_and_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 120
    assert "tox run -e quickstart" in text
    assert "tox run\n" in text
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("tox run")
