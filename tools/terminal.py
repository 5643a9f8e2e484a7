"""Records what a command prints, with the times, and draws the recording as a terminal whose lines come when they came.

    python tools/terminal.py record docs/images/quickstart.cast python -m harness.grpo --wrapper elastic
    python tools/terminal.py draw docs/images/quickstart.cast docs/images/quickstart.svg

The recording has asciinema's format, version 2, so `asciinema play` shows it, too. The picture is an SVG file without
scripts. Where nothing may move, it shows the last lines.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 94, 26  # of the terminal, in characters
_SPEED = 8  # times as fast as it was
_CELL, _LINE, _MARGIN = 8.4, 18, 14  # pixels, for letters of 14 pixels
_START_S = 1.0

_PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d5dbe1; white-space: pre }}
text:first-child {{ fill: #7fd6a0 }}
g {{ transform: translateY({end}px); animation: lines {seconds:.1f}s step-end }}
@media (prefers-reduced-motion: reduce) {{ g {{ animation: none }} }}
@keyframes lines {{
{frames}
}}
</style>
<rect width="100%" height="100%" rx="8" fill="#1b2229"/>
<svg y="{margin}" width="100%" height="{inside}"><g>
{lines}
</g></svg>
</svg>
"""


def record(out: Path, command: list[str]) -> None:
    """Runs a command and writes its lines with their times in seconds."""
    header = {"version": 2, "width": WIDTH, "height": HEIGHT, "command": shlex.join(command)}
    environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with (
        out.open("w", encoding="utf-8") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process,
    ):
        file.write(json.dumps(header) + "\n")
        for line in process.stdout or ():
            event = [round(time.monotonic() - began, 2), "o", line.rstrip("\n") + "\r\n"]
            file.write(json.dumps(event, ensure_ascii=False) + "\n")
    if process.returncode:
        sys.exit(f"the command ended with status {process.returncode}")


def draw(recording: Path) -> str:
    """Returns a recording as SVG: a window over its lines, which moves down by a line whenever one came."""
    header, *events = map(json.loads, recording.read_text("utf-8").splitlines())
    came = [(0.0, f"$ {header['command']}"), *((at, text.rstrip()) for at, _, text in events)]
    rows, width, total = header["height"], header["width"], _START_S + came[-1][0] / _SPEED
    printed = [(at, text[i : i + width]) for at, text in came for i in range(0, max(len(text), 1), width)]
    lines = [
        f'<text x="{_MARGIN}" y="{_LINE * (i + 0.75)}" textLength="{_CELL * len(text):.1f}">{escape(text)}</text>'
        for i, (_, text) in enumerate(printed)
        if text
    ]
    frames = {  # of lines that came at the same time, the last one's
        f"{100 * (_START_S + at / _SPEED) / total if i else 0:.2f}%": f"{{ transform: "
        f"translateY({(rows - i - 1) * _LINE}px) }}"
        for i, (at, _) in enumerate(printed)
    }
    return _PICTURE.format(
        width=round(_CELL * width + 2 * _MARGIN),
        height=rows * _LINE + 2 * _MARGIN,
        inside=rows * _LINE,
        margin=_MARGIN,
        label=escape(f"A terminal that runs {header['command']}"),
        end=(rows - len(printed)) * _LINE,
        seconds=total,
        frames="\n".join(map(" ".join, frames.items())),
        lines="\n".join(lines),
    )


if __name__ == "__main__":
    doing, path, *rest = sys.argv[1:]
    if doing == "record":
        record(Path(path), rest)
    else:
        Path(rest[0]).write_text(draw(Path(path)), encoding="utf-8")
