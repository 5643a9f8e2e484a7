"""Draws K by update for a page of docs/trainers.md, from the `horizon.jsonl` that an adapter leaves. A folder follows
its K0.

python tools/draw_k.py docs/images/k-in-skyrl.svg 10 FOLDER 50 FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from drawing import BLUE, ORANGE, band, panels, save


def main() -> None:
    """Reads the runs that the command line names, and writes the figure."""
    out, *runs = sys.argv[1:]
    figure, axes = panels(1, title="")
    for k0, folder, color in zip(runs[::2], runs[1::2], (BLUE, ORANGE), strict=True):
        rows = [json.loads(line) for line in (Path(folder) / "horizon.jsonl").read_text("utf-8").splitlines()]
        k = [float(k0), *(row["horizon/k_real"] for row in rows)]
        band(axes[0, 0], range(len(k)), [k], f"from K0 = {k0}", color)
    axes[0, 0].set(xlabel="update of K", ylabel="K, steps", ylim=(0, 52))
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].legend(fontsize=8, frameon=False)
    save(figure, Path(out))


if __name__ == "__main__":
    main()
