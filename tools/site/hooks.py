"""Hooks that mkdocs calls while it builds the site.

They draw formulas, render the notebooks with their stored outputs, copy the files of the repository that pages link to,
mark tables and code for narrow screens, and write llms.txt.
The built site loads nothing from other hosts (tests/docs/test_site.py).
"""

from __future__ import annotations

import configparser
import re
import xml.etree.ElementTree as etree
from html import escape
from pathlib import Path
from typing import Any

import ziamath
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
_BESIDE = re.compile(r"\]\((?P<path>[^)#:]+)")
_SENTENCE = 40  # characters; a shorter cell fits into a column on a phone
_WORD = 36  # characters; a shorter word of code fits into a line on a phone


class Narrow(Extension):
    """Marks the page for the style sheet's rules for narrow screens."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Registers the marking after the inline patterns, when paragraphs and cells have their text."""
        md.treeprocessors.register(_Narrow(md), "narrow", 5)


class _Narrow(Treeprocessor):
    """Marks tables that contain sentences, puts column names on their cells, and marks code words that must not be
    broken.
    """

    def run(self, root: etree.Element) -> None:
        for table in root.iter("table"):
            names = ["".join(name.itertext()) for name in table.iter("th")]
            rows = [row.findall("td") for row in table.iter("tr") if row.find("td") is not None]
            if any(len("".join(cell.itertext())) > _SENTENCE for row in rows for cell in row[1:]):
                table.set("data-sentences", "")
                for row in rows:
                    for name, cell in zip(names[1:], row[1:], strict=True):
                        cell.set("data-column", f"{name}: " if name and len(names) > 2 else "")
        for parent in root.iter():
            if parent.tag not in ("pre", "h1", "h2", "h3"):
                for code in parent.findall("code"):
                    _keep_words(code)


def _keep_words(code: etree.Element) -> None:
    """Marks words of code. A browser may break a line after the first hyphen of `--flag`, but not within a marked
    word.
    """
    words = re.split("( )", code.text or "")
    code.text = ""
    for word in words:
        if 1 < len(word) <= _WORD:
            etree.SubElement(code, "span", {"data-word": ""}).text = AtomicString(word)
        elif len(code):
            code[-1].tail = AtomicString((code[-1].tail or "") + word)
        else:
            code.text = AtomicString(code.text + word)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the version and the repository's address, and two kinds of fences.

    `math` contains LaTeX, as on GitHub, and `message` an error message, which may be wrapped.
    """
    config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", []).extend(
        [
            {"name": "math", "class": "math", "format": _formula},
            {"name": "message", "class": "message", "format": _message},
        ]
    )
    extensions: list[Any] = config.markdown_extensions
    extensions.append(Narrow())
    package = configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    config.site_name += " " + package["metadata"]["version"]
    if source := re.search(r"Source = (\S+)", package["metadata"].get("project_urls", "")):
        config.repo_url, config.repo_name = source[1], "Repository"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Copies the files outside docs/ that pages link to: results, examples, the contributor's pages."""
    docs = Path(config.docs_dir)
    linked = {
        match["path"]
        for page in docs.rglob("*.md")
        for match in _outside(page.relative_to(docs).as_posix()).finditer(page.read_text())
        if (ROOT / match["path"]).is_file()
    }
    for page in [path for path in linked if path.endswith(".md")]:  # and the files next to them: figures, scripts
        for target in _BESIDE.findall((ROOT / page).read_text()):
            beside = Path(page).parent / target
            if (ROOT / beside).is_file() and ".." not in beside.parts and beside.parts[0] != "docs":
                linked.add(beside.as_posix())
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        for name, content in _rendered(notebook).items():
            files.append(File.generated(config, f"repository/examples/{name}", content=content))
    for path in sorted(linked):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Adds llms.txt: AGENTS.md with the site's links, and each page with its first sentence."""
    about = re.sub(r"\]\(docs/([^)#]+)\.md", r"](\1.html", (ROOT / "AGENTS.md").read_text())
    about = re.sub(r"\[([^]]+)\]\(CONTRIBUTING[^)]*\)", r"\1", about)
    lines = [f"- [{page.title}]({page.file.url}): {_first_sentence(page.file.content_string)}" for page in nav.pages]
    text = re.sub("<!--.*?-->\n", "", about) + "\n## Pages\n\n" + "\n".join(lines) + "\n"
    files.append(File.generated(config, "llms.txt", content=text))


def _first_sentence(page: str) -> str:
    prose = re.sub(r"^````?.*?^````?$|<!--.*?-->|!\[.*?\)", "", page, flags=re.DOTALL | re.MULTILINE)
    found = re.search(r"^(?![#|<!-])\S.*?[.:](?=\s)", prose, re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", found[0]).split()) if found else ""


def _rendered(notebook: Path) -> dict[str, str | bytes]:
    """The page of a notebook, and its figures, by their names."""
    page, resources = MarkdownExporter().from_filename(str(notebook))
    figures = {f"{notebook.stem}-{name}": data for name, data in resources["outputs"].items()}
    page = re.sub(r"\]\((output_\w+\.png)\)", rf"]({notebook.stem}-\1)", page)
    page = re.sub(r"</pre>\s*<pre [^>]*>", "", page)  # rich makes one of each line
    return {f"{notebook.stem}.md": page, **figures}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to such files at the copies, and the copies' links to docs/ back at the pages."""
    uri = page.file.src_uri
    markdown = re.sub(r"\]\(([^):]+)\.ipynb\)", r"](\1.md)", markdown)
    up = "../" * uri.count("/")
    if uri.startswith("repository/"):
        return re.sub(r"\]\((\.\./)?docs/", f"]({up}", markdown)
    return _outside(uri).sub(rf"]({up}repository/\g<path>", markdown)


def _outside(uri: str) -> re.Pattern[str]:
    """The links from a page of docs/ to files outside it. `uri` is the page's path in docs/."""
    return re.compile(rf"\]\((?:\.\./){{{uri.count('/') + 1}}}(?P<path>(?!\.\./)[^)#]+)")


def _formula(source: str, *_: Any, **__: Any) -> str:
    """A drawing with the glyphs in it: few machines have a font for MathML."""
    drawn = ziamath.Latex(source.strip(), size=17, color="currentColor").svg()
    return f'<div class="math" role="math" aria-label="{escape(source.strip())}">{drawn}</div>'


def _message(source: str, *_: Any, **__: Any) -> str:
    return f'<p class="message">{escape(source.strip())}</p>'
