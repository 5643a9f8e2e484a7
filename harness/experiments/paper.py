"""The paper's own numbers, as printed. Reports and sweeps show them next to this project's.

The source is "Elastic Horizon: Discovering the Effective Interaction Frontier in Agentic Reinforcement Learning". An em dash
marks a cell that the paper leaves empty. An asterisk is the paper's own mark of unstable training. The paper prints its curves
only as pictures, so they are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PAPER", "PaperTable"]


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        title: What it shows, and its place in the paper.
        columns: The headings.
        rows: A text per column for each arm. The keys are the labels of the arms in our suites.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]


PAPER: Mapping[str, tuple[PaperTable, ...]] = {
    "saturation": (
        PaperTable(
            "the paper, Section 5.2: success at K (7B, read off the text) and plateau bands",
            ("AppWorld success %", "AppWorld band", "BFCL band"),
            {"K=10": ("~17", "", ""), "K=20": ("", "", "20 to 50"), "K=30": ("~60", "30 to 60", "")},
        ),
    ),
    "convergence": (
        PaperTable(
            "the paper, Section 5.3: where K goes (AppWorld 7B; band 30 to 60)",
            ("K",),
            {
                "elastic K0=10": ("rises into the band, below 50",),
                "elastic K0=50": ("falls into the band, below 50",),
                "ScalingInter": ("rises to 50",),
                "TTI": ("rises to 50",),
            },
        ),
    ),
    "comparison": (
        PaperTable(
            "the paper, Tables 'Performance comparison' and 'Mean@8 with standard deviations': mean@8 / best@8, %",
            ("AppWorld 7B", "BFCL 7B", "AppWorld 14B", "BFCL 14B"),
            {
                "K=15": ("21.49 ± 2.14 / 42.40", "66.87 ± 1.83 / 71.62", "56.57 / 71.16", "68.80 / 74.13"),
                "K=50": ("31.14 ± 3.07 / 49.20", "60.37 ± 4.52* / 68.32*", "65.78 / 80.63", "64.12 / 73.61"),
                "TTI": ("37.28 ± 2.91 / 46.14", "55.75 ± 3.68 / 71.22", "60.08 / 77.73", "70.54 / 76.35"),
                "ScalingInter": ("36.18 ± 2.53 / 55.10", "69.12 ± 2.15 / 73.93", "67.54 / 82.54", "70.17 / 78.85"),
                "elastic": ("39.47 ± 2.38 / 56.87", "71.62 ± 1.96 / 80.45", "77.85 / 90.42", "73.62 / 80.49"),
            },
        ),
        PaperTable(
            "the paper, Table 'Sample efficiency on AppWorld' (7B)",
            ("tokens to 50 %", "tokens at peak", "peak %", "saved"),
            {
                "K=50": ("50.21M", "90.85M", "56.49", "(baseline)"),
                "TTI": ("—", "85.07M", "49.50", "—"),
                "ScalingInter": ("73.98M", "73.98M", "50.44", "—"),
                "elastic": ("36.28M", "85.31M", "56.87", "~28 %"),
            },
        ),
    ),
    "percentile": (
        PaperTable(
            "the paper, Tables 'Percentile choice' and 'Detailed percentile ablation' (7B)",
            ("AppWorld mean@8 %", "BFCL mean@8 %", "final K", "K std, last 50 steps"),
            {
                "mean": ("24.12", "—", "19.09", "16.4"),
                "P50": ("24.12", "68.37", "15.82", "14.9"),
                "P90": ("39.47", "71.62", "28.1", "12.8"),
                "P95": ("38.38", "69.87", "44.15", "9.7"),
                "max": ("36.0", "62.88", "50.00", "3.1"),
            },
        ),
    ),
    "headroom": (
        PaperTable(
            "the paper, Table 'Ablation on headroom' (AppWorld 7B, step 200)",
            ("mean@8 %", "final K", "tokens"),
            {
                "Δ=0": ("15.35", "6.8", "0.22M"),
                "Δ=5": ("12.06", "22.9", "0.37M"),
                "Δ=10": ("39.47", "28.1", "0.39M"),
                "Δ=15": ("25.87", "28.7", "0.35M"),
                "Δ=20": ("33.11", "35.9", "0.37M"),
            },
        ),
    ),
    "ema": (
        PaperTable(
            "the paper, Table 'Ablation on EMA coefficient' (AppWorld 7B)",
            ("mean@8 %", "final K", "K std"),
            {
                "α=0.1": ("39.47", "28.1", "12.8"),
                "α=0.2": ("30.92", "27.6", "14.1"),
                "α=1": ("24.78", "28", "17.9"),
            },
        ),
    ),
}
"""The paper's tables, by suite."""
