"""How the pages are made: the templates, and what they carry along so that a page needs no other file and no network.

Every text is escaped by the templates. A page's policy admits its own script and style by their hashes and nothing else, so
that a text which was missed could still run nothing. Left out: what the pages say.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["environment"]


@cache
def environment() -> Environment:
    """The templates, with ``source(name)`` for a script or style to put inline and ``policy(*names)`` for the page's head."""
    made = Environment(
        loader=PackageLoader("harness.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"source": _source, "policy": _policy}
    return made


@cache
def _source(name: str) -> Markup:
    text = (files("harness.experiments.report") / "templates" / name).read_text(encoding="utf-8")
    assert "</" not in text, f"{name} would end its own element"
    return Markup(text)


def _policy(*, script: str = "", styles: tuple[str, ...]) -> str:
    """The Content-Security-Policy of a page with these inline sources, each the whole of its element."""
    scripts = _hash(_source(script)) if script else "'none'"
    style = " ".join(_hash(_source(name)) for name in styles)
    return f"default-src 'none'; img-src data:; script-src {scripts}; style-src {style}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
