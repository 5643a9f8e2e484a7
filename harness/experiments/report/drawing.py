"""What all figures of a report share: a drawing with its words, a panel, its style and its legend."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "ORANGE", "Drawing", "drawing_style", "legend", "panel", "svg"]

# Of Okabe and Ito's colours.
BLUE, ORANGE = "#0072B2", "#D55E00"
GREY = "#6E6E6E"
_SIZE_IN = (5.6, 3.7)


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes:
        title: What it shows.
        caption: How to read it.
        svg: The picture.
        alternative: What it shows, in words, for screen readers.
    """

    title: str
    caption: str
    svg: str = field(repr=False)
    alternative: str

    def data_uri(self) -> str:
        """Returns the picture for an ``img``. There a browser runs no script, whatever an arm's label contains."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode('ascii')}"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        words = f"<b>{escape(self.title)}.</b> {escape(self.caption)}"
        return f'<figure><img src="{self.data_uri()}" alt="{escape(self.alternative)}"><figcaption>{words}</figcaption></figure>'


@contextmanager
def drawing_style() -> Iterator[None]:
    """The style of all figures; also a decorator of what draws them."""
    with matplotlib.rc_context(
        {
            "font.size": 10,
            "svg.fonttype": "path",  # letters as outlines look the same everywhere
            "svg.hashsalt": "report",  # the same figure gives the same bytes
            "text.parse_math": False,  # a dollar sign in an arm's label is a dollar sign
        }
    ):
        yield


def panel() -> tuple[Figure, Axes]:
    """Makes an empty panel."""
    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes: Axes) -> None:
    """Puts the legend below the panel, where no line crosses it."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, 56) for label in labels]
    columns = 3 if max(map(len, labels), default=0) <= 16 else 2 if max(map(len, labels)) <= 28 else 1
    axes.figure.legend(handles, wrapped, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)


def svg(figure: Figure) -> str:
    """Returns the figure as SVG. The same figure gives the same bytes."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
