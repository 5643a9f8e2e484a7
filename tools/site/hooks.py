"""What the site's builder does beside mkdocs' own: formulas as MathML, and files of the repository that pages link to.

Left out: scripts and fonts from elsewhere; the built site asks no other host for anything (tests/docs/test_site.py).
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)#]+)")
_BESIDE = re.compile(r"\]\((?P<path>[^)#:]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A fence named math holds LaTeX, as on GitHub; one named message an error's words, which may be wrapped."""
    config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", []).extend(
        [
            {"name": "math", "class": "math", "format": _formula},
            {"name": "message", "class": "message", "format": _message},
        ]
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes along what pages link to outside docs/: results, examples, the contributor's pages."""
    linked = {
        match["path"]
        for page in Path(config.docs_dir).glob("*.md")
        for match in _OUTSIDE.finditer(page.read_text())
        if (ROOT / match["path"]).is_file()
    }
    for page in [path for path in linked if path.endswith(".md")]:  # and what stands beside them: figures, scripts
        for target in _BESIDE.findall((ROOT / page).read_text()):
            beside = Path(page).parent / target
            if (ROOT / beside).is_file() and ".." not in beside.parts:
                linked.add(beside.as_posix())
    for path in sorted(linked):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads such links to the copies, and the copies' links to docs/ back."""
    if page.file.src_uri.startswith("repository/"):
        return markdown.replace("](../docs/", f"]({'../' * page.file.src_uri.count('/')}")
    return _OUTSIDE.sub(r"](repository/\g<path>", markdown) if "/" not in page.file.src_uri else markdown


def _formula(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="math">{convert(source.strip(), display="block")}</div>'


def _message(source: str, *_: Any, **__: Any) -> str:
    return f'<p class="message">{escape(source.strip())}</p>'
