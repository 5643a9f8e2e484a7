import ast
import json
import re
import runpy
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest

import eh_gym
from eh_gym import errors, worker
from eh_gym.horizon.make import HORIZONS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference.py"))


@pytest.mark.parametrize("name", REFERENCE["WRITTEN"])
def test_the_reference_pages_are_the_code_s(name):
    written = (ROOT / "docs" / "reference" / name).read_text()
    assert written == REFERENCE["WRITTEN"][name](), "run: python tools/reference.py"


@cache
def _anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"\]\([^)]*\)|[^\w -]", "", heading).strip().lower() for heading in headings]
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "hubs" / "README.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        if "://" not in target:
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), target
            assert not anchor or there.suffix != ".md" or anchor in _anchors(there), target


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.parent.name != "examples" and p.name not in ("vllm.md", "CHANGELOG.md")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_flags_in_the_docs_exist(page):
    known = set(re.findall(r"`--([a-z][a-z0-9.-]*)", (ROOT / "docs" / "reference" / "flags.md").read_text()))
    known |= {f"no-{name}" for name in known} | {"help", "help-all"}
    known |= {"logprobs-mode", "tensor-parallel-size", "max-model-len"}  # vLLM's
    for script in ("envs/serve.py", "examples/simulate.py"):
        known |= set(re.findall(r'"--([a-z-]+)"', (ROOT / script).read_text()))
    spans = re.findall(r"`(--[^`\n]+)`", page.read_text())
    used = {flag for span in spans for flag in re.findall(r"--([a-z][a-z0-9.-]*[a-z0-9])", span)}
    used = {flag for flag in used if not flag.startswith("env.taskset.")}  # verifiers'
    assert used <= known, used - known


def test_the_readme_fits_a_minute_and_package_citation_and_changelog_agree():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    package, citation = setup["metadata"], (ROOT / "CITATION.cff").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", package["classifiers"])
    _, first_line, *rest = (ROOT / "README.md").read_text().split("\n\n")
    dated = r"\n## (\d.*) - (?:unreleased|20\d\d-\d\d-\d\d)\n"
    version = re.search(dated, (ROOT / "CHANGELOG.md").read_text())[1]
    assert version == package["version"] == eh_gym.__version__
    assert f"\nversion: {version}\n" in citation
    assert first_line.startswith(f"Version {version} ")
    assert f"Python {pythons[0]} to {pythons[-1]} " in first_line
    assert f"[{package['license']}](LICENSE)" in first_line
    [paper] = re.findall(r"^    url: (.+)$", citation, re.MULTILINE)
    assert f"({paper})" in rest[0]
    assert f"Paper = {paper}" in package["project_urls"]
    assert len(" ".join(rest).split()) <= 950


def test_the_api_page_has_every_public_name():
    shown = set(re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference" / "eh_gym.md").read_text(), re.MULTILINE))
    public = {
        f"{prefix}.{name}"
        for prefix, package in (("eh_gym", eh_gym), ("eh_gym.worker", worker), ("eh_gym.errors", errors))
        for name in package.__all__
    }
    assert shown == public - {"eh_gym.errors"}


def _text(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def _strings():
    sources = [path for package in ("eh_gym", "envs", "harness") for path in (ROOT / package).rglob("*.py")]
    return {text for path in sources for node in ast.walk(ast.parse(path.read_text())) if (text := _text(node))}


MESSAGES = re.findall(
    r"^```message\n(.*?)\n```", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_errors_in_the_docs_are_in_the_code(message):
    pattern = re.compile(".*".join(re.escape(part) for part in message.split("…")), re.DOTALL)
    assert any(pattern.search(text) for text in _strings())


def test_the_page_of_training_runs_has_every_wrapper_in_its_table():
    page = (ROOT / "docs" / "harness.md").read_text()
    table = page.partition("| `--wrapper` | K |")[2].partition("\n\n")[0]
    assert [name for name in (*HORIZONS, "none") if f"`{name}`" not in table] == []


def test_the_tasks_on_the_page_of_agents_are_of_both_splits_that_its_commands_play():
    page = (ROOT / "docs" / "agents.md").read_text()
    lines = page.partition("```json\n")[2].partition("```")[0].splitlines()
    assert {json.loads(line).get("split", "train") for line in lines} == {"train", "test"}


def test_every_page_of_the_site_is_in_its_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs')}\n" in navigation, page
