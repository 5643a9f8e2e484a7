"""`python -m harness.report` as a whole: one page that stands alone, whatever the runs are like."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.evaluate import main as evaluate
from harness.report import figures, main

from .conftest import HOSTILE, write_log, write_run, write_sweep


class _Elements(HTMLParser):
    """Every element with its attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def report(*paths: Path, out: Path) -> _Elements:
    main([*map(str, paths), "--out", str(out)])
    return _Elements(out.read_text())


def test_a_sweep_s_report(sweep: Callable[..., Path], tmp_path: Path) -> None:
    out = sweep(seeds=2, updates=3, only=("saturation", "convergence"))
    write_log(out / "runs" / "convergence-0-seed0", updates=2, tasks=1)
    page = report(out, out=tmp_path / "made" / "report.html")
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(images) == 4 + 4
    for image in images:
        assert str(image["src"]).startswith("data:image/svg+xml;base64,")
        assert len(str(image["alt"])) > 40
    assert "Plateau: K from" in page.text
    assert "Band: K from" in page.text  # the saturation suite's, in the convergence suite
    assert "16 of 16 logged episodes" in page.text
    links = {str(attributes["href"]) for tag, attributes in page.elements if tag == "a"}
    assert "report.episodes.html" in links
    assert any(link.startswith("report.episodes.html#run=") for link in links)
    assert (tmp_path / "made" / "report.episodes.html").exists()
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_the_page_needs_no_other_file_and_runs_no_script(sweep: Callable[..., Path], tmp_path: Path) -> None:
    page = report(sweep(seeds=1, updates=2, only=("ema",)), out=tmp_path / "report.html")
    assert not [tag for tag, _ in page.elements if tag in ("script", "link", "iframe", "object")]
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:")), (tag, attributes)


def test_names_from_outside_are_text(sweep: Callable[..., Path], tmp_path: Path) -> None:
    out = sweep(seeds=1, updates=2, only=("ema",))
    manifest = out / "suites" / "ema.json"
    said = json.loads(manifest.read_text())
    said["model"] = said["env"] = said["arms"][0]["label"] = HOSTILE
    said["arms"][1]["runs"][0]["folder"] += "-gone"
    said["arms"][1]["label"] = HOSTILE + "2"
    manifest.write_text(json.dumps(said))
    page = report(out, out=tmp_path / "report.html")
    assert HOSTILE in page.text
    assert not [attributes for tag, attributes in page.elements if tag == "script" or "onerror" in attributes]


def test_runs_that_were_killed_are_reported_as_far_as_they_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = write_run(tmp_path / "torn", updates=6, ended=False)
    log = torn / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    empty = write_run(tmp_path / "empty", updates=6, ended=False, seed=1)
    (empty / "metrics.jsonl").unlink()
    page = report(torn, empty, out=tmp_path / "report.html")
    assert "torn: 5 of 6 updates" in page.text
    assert "empty: no metrics yet" in page.text
    assert "No episodes were logged." in page.text
    assert [tag for tag, _ in page.elements].count("img") == 5
    assert "report.html  (" in capsys.readouterr().out


@pytest.mark.parametrize(("split", "told"), [("mini", True), ("all", True), ("train", False)])
def test_an_evaluation_on_the_training_split_is_labelled(tmp_path: Path, split: str, told: bool) -> None:
    """AppWorld's mini world has one split, and the page called its tasks held-out without a word."""
    run = write_run(tmp_path / "run", split=split, eval_split="mini")
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["after"]["sampled"]["tasks"] = 12
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    text = report(run, out=tmp_path / "report.html").text
    assert "held-out: 12 tasks x k" in text
    assert ("of the split that the runs train on" in text) == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder nowhere"),
        (["nowhere", "--out", "/"], "out must be a file"),
        (["nowhere", "--out", "metrics.jsonl"], r"out must .*\.html.*--out"),
        ([], "name run folders"),
    ],
)
def test_wrong_arguments_end_the_command_with_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert re.search(message, capsys.readouterr().out)


def test_two_sweeps_keep_their_own_bands(tmp_path: Path) -> None:
    first = write_sweep(tmp_path / "first", seeds=1, updates=2, only=("saturation", "convergence"))
    second = write_sweep(tmp_path / "second", seeds=1, updates=2, only=("convergence",))
    text = report(first, second, out=tmp_path / "report.html").text
    assert text.count("Band: K from") == 1
    assert text.count("Band: unknown") == 1
    assert f"sweep {first}, its quick setting" in text
    manifest = first / "suites" / "saturation.json"
    manifest.write_text(manifest.read_text().replace('"base": {}', '"base": {"k_max": 60}'))
    other = first / "suites" / "convergence.json"
    other.write_text(other.read_text().replace('"base": {}', '"base": {"k_max": 50}'))
    assert (
        "Band: K from" not in report(first, out=tmp_path / "report.html").text
    )  # the band of another model or environment


def test_evaluations_and_runs_named_one_by_one_have_a_saturation_curve(tmp_path: Path) -> None:
    told, untold = (
        write_run(tmp_path / name, updates=8, budget_hint=hint) for name, hint in (("a", "{left}"), ("b", ""))
    )
    write_log(told, updates=8, tasks=2)
    write_log(untold, updates=8, tasks=2)
    evaluate(["--policy", "expert", "--tasks", "9", "--horizon", "12", "--out", str(tmp_path / "evaluation")])
    page = report(told, untold, tmp_path / "evaluation", out=tmp_path / "report.html")
    curves = [str(a["alt"]) for tag, a in page.elements if tag == "img" and "within K steps" in str(a["alt"])]
    # Of each group of 8 episodes, the first succeeds in step 2, and K = 6 stops the others.
    assert curves[0].endswith("by K. K = 2: 12.5 %; K = 6: 12.5 %.")
    assert len(curves) == 2  # not of the run whose agent was told K


def test_an_evaluation_that_is_kept_beside_or_in_a_run_does_not_hide_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", updates=1)
    for folder in (run, tmp_path):
        evaluate(["--policy", "expert", "--tasks", "1", "--out", str(folder / "evaluation")])
    assert "1 run on" in report(run, out=tmp_path / "report.html").text
    with pytest.raises(SystemExit):
        report(tmp_path, out=tmp_path / "report.html")  # says that it holds runs


def test_a_notebook_gets_the_figures_of_the_page(sweep: Callable[..., Path], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", updates=3)
    evaluate(["--policy", "expert", "--tasks", "9", "--horizon", "12", "--out", str(tmp_path / "evaluation")])
    folders = (sweep(seeds=1, updates=3, only=("saturation", "convergence")), run, tmp_path / "evaluation")
    page = report(*folders, out=tmp_path / "report.html")
    shown = _Elements("".join(figure._repr_html_() for figure in figures(*map(str, folders))))
    assert [a for tag, a in shown.elements if tag == "img"] == [
        {"src": a["src"], "alt": a["alt"]} for tag, a in page.elements if tag == "img"
    ]
    assert {tag for tag, _ in shown.elements} == {"figure", "img", "figcaption", "b"}
