"""Renders the templates of the pages. A page contains its script and style, so it needs no other file and no network.

The templates escape every text. A page's Content-Security-Policy allows only its own script and style, by their hashes. So a
text could not run anything even if it were not escaped.
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
    """Returns the templates. They can call ``source(name)`` for the text of a script or style, and ``policy(...)``."""
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
    assert "</" not in text, f"{name} would close its own element"
    return Markup(text)


def _policy(*, script: str = "", styles: tuple[str, ...]) -> str:
    """Returns the Content-Security-Policy of a page with these inline sources. Each must fill its element exactly."""
    scripts = _hash(_source(script)) if script else "'none'"
    style = " ".join(_hash(_source(name)) for name in styles)
    return f"default-src 'none'; img-src data:; script-src {scripts}; style-src {style}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
