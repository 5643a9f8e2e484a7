"""The figures: what is drawn, told apart and said in words; odd runs; the same bytes."""

import json
import xml.etree.ElementTree as ET

import matplotlib
import pytest
from made_up_runs import HOSTILE, write_run
from matplotlib.figure import Figure

from harness.report.drawings import draw_suite
from harness.sweep.analysis import suite_table
from harness.sweep.runs import read_suites


def draw(suite):
    return {drawing.title: drawing for drawing in draw_suite(suite, suite_table(suite))}


@pytest.fixture
def drawn(monkeypatch):
    seen = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: seen.append(figure) or real(figure, *a, **k))
    return seen


def named_lines(figure):
    lines = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    return {label: line for label, line in lines.items() if not label.startswith("_")}


def test_the_mean_over_seeds_is_the_thick_line(tmp_path, drawn):
    folders = [write_run(tmp_path / str(k), updates=3, seed=k, k_from=k, k_to=k) for k in (10, 30)]
    draw(read_suites(folders)[0])
    (k,) = [figure for figure in drawn if figure.axes[0].get_ylabel() == "K (steps)"]
    line = named_lines(k)["elastic"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 1, 2], [20, 20, 20])
    assert [x.get_ydata()[0] for x in k.axes[0].get_lines() if x is not line] == [10, 30]


def test_noisy_metrics_are_the_mean_of_five_updates(tmp_path, drawn):
    folder = write_run(tmp_path / "run", updates=7, ended=False)
    tokens = [10, 20, 30, None, 40, 50, 60]
    same = {"rollout/success": 0.5, "time/total_s": 1.0}
    rows = [{"update": i, "tokens/total": i, "tokens/update": t, **same} for i, t in enumerate(tokens)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw(read_suites([folder])[0])
    (line,) = named_lines(drawn[3]).values()
    assert list(line.get_xdata()) == [0, 1, 2, 4, 5, 6]
    assert list(line.get_ydata()) == pytest.approx([10, 15, 20, 25, 30, 40])  # the last: (20 + 30 + 40 + 50 + 60) / 5


def test_runs_without_metrics_or_without_evaluations_have_no_line(tmp_path, drawn):
    folders = [write_run(tmp_path / "whole", updates=6), write_run(tmp_path / "killed", updates=2, ended=False, seed=1)]
    assert "updates=2: not recorded" in draw(read_suites(folders)[0])["Success by update"].alternative
    for folder in folders:
        drawn.clear()
        (folder / "metrics.jsonl").write_text("")
        draw(read_suites(folders)[0])
        assert [set(named_lines(figure)) for figure in drawn[:1]] == (
            [{"elastic, updates=2"}] if folder == folders[0] else []
        )


@pytest.mark.parametrize("label", ["$x^$", HOSTILE, "Δ={a}"])
def test_any_label_can_be_drawn(sweep, label):
    out = sweep(seeds=1, updates=2, only=("ema",))
    manifest = out / "suites" / "ema.json"
    said = json.loads(manifest.read_text())
    said["arms"][0]["label"] = label
    manifest.write_text(json.dumps(said))
    for drawing in draw(read_suites([out])[0]).values():
        assert not [e for e in ET.fromstring(drawing.svg).iter() if e.tag.endswith("script")]
        assert label in drawing.alternative


def test_the_same_runs_give_the_same_bytes_and_matplotlib_stays_as_it_was(tmp_path):
    suite = read_suites([write_run(tmp_path / "run", updates=2)])[0]
    before = dict(matplotlib.rcParams)
    assert draw(suite) == draw(suite)
    assert dict(matplotlib.rcParams) == before
