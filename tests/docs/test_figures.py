"""The figures in the documentation stand in the result files that they name; CONTRIBUTING has the convention."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_FIGURES = {"appworld-attacks.txt"}  # a list of attacks with their outcomes

_NUMBER = r"(?<![\w.])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e-?\d+)?"
_BLOCK = re.compile(r"<!-- figures: (\S+) -->\n+((?:.+\n)+)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*benchmarks/results/([^)\s]+)\)")


def value(number):
    return float(number.replace(",", ""))


def missing(text, result):
    """The numbers of a text that a result does not have. A table's row is compared with the lines of its name."""
    lacking = []
    for line in text.splitlines():
        name = re.match(r"\| *([^|]+?) *\|", line)
        own = re.findall(rf"^{re.escape(name[1])}  .*", result, re.MULTILINE) if name else []
        if own:
            line = line.removeprefix(name[0]) if name else line
        measured = [value(number) for number in re.findall(_NUMBER, "\n".join(own) or result)]
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)|K0? = ", " ", line)
        lacking += [number for number in re.findall(_NUMBER + r"(?![\w-])", plain) if not stands(number, measured)]
    return lacking


def stands(number, measured):
    """Whether a number was measured: as it is or rounded; a fraction also in thousandths, and as a percentage."""
    scales = [1.0, *([1e-3] if "." in number else []), *([1e-2] if number.startswith(".") else [])]
    return any(abs(m * scale - value(number)) <= rounding(number) for m in measured for scale in scales)


def rounding(number):
    """Half of the last digit that counts: 0.05 for "4.3", 50 for "6,500"."""
    if "e" in number:
        return 1e-9 * abs(value(number))
    digits = number.partition(".")[2]
    if digits:
        return 0.5001 * 10 ** -len(digits)
    zeros = len(number) - len(number.rstrip("0")) if "," in number else 0
    return 0.5001 * 10**zeros


def figures(page):
    text = page.read_text()
    yield from ((block, name) for name, block in _BLOCK.findall(text))
    yield from ((words, name) for words, name in _LINK.findall(text) if re.search(_NUMBER, words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_figure_stands_in_its_file(page):
    for text, name in figures(page):
        assert missing(text, (RESULTS / name).read_text()) == [], f"{name} lacks these figures of {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_links_a_result_says_which_figures_are_its(page):
    linked = {name for _, name in _LINK.findall(page.read_text())} - NO_FIGURES
    assert linked <= {name for _, name in figures(page)}


def test_a_figure_that_changed_is_found():
    result = "all  5.99  3.05  1.43  4.2x  6,536 steps/s, 8837 ms, 91.0 %, K0 10"
    assert missing("takes 1.43 ms, 4.2 times, 6,500 steps, 8.8 s, .91 from K0 = 10, `--seeds 7`, P90, 7B", result) == []
    wrong = ["1.44", "4.3", "6,600", "8.7", ".92"]
    assert missing(" and ".join(wrong), result) == wrong
    table = "few   0.50  0.25\nmany  0.75  0.10\n"
    assert missing("| few | .50 | .25 |\n| many | .75 / .10 |", table) == []
    assert missing("| few | .50 | .75 |\n| many | .75 / .10 |", table) == [".75"]
