"""The picture is drawn from whatever a run has recorded, and leaves matplotlib as it was."""

import json
import math
import struct
import subprocess
import sys
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from eh_gym.errors import StateError
from harness.run.figure import _smooth, draw_run
from harness.run.glossary import GLOSSARY


def rows(n):
    """A run of `n` updates with every column that is drawn."""
    return [
        {
            "update": i,
            "horizon/k": 10 + i // 2,
            "horizon/boundary": None if i < 2 else 9.0 + i,
            "horizon/target": None if i < 2 else 19.0 + i,
            "rollout/success": i / n,
            "rollout/success_ceiling": 0.9,
            "tokens/update": 4000.0 + 10 * i,
            "tokens/total": 4000.0 * (i + 1),
        }
        for i in range(n)
    ]


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draws rows; returns the figure that was saved, after checking the file."""

    def _draw(rows):
        figures = []
        savefig = Figure.savefig

        def watched(self, *args, **kwargs):
            figures.append(self)
            savefig(self, *args, **kwargs)

        monkeypatch.setattr(Figure, "savefig", watched)
        log, png = tmp_path / "metrics.jsonl", tmp_path / "figure.png"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw_run(log, png, title="a run")
        data = png.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == (1080, 1200)  # width and height, from the header
        assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "metrics.jsonl"]
        return figures[0]

    return _draw


def drawn(figure):
    """The lines by their labels."""
    return {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}


def test_draws_the_recorded_values_over_the_updates(draw):
    run = rows(30)
    figure = draw(run)
    columns = {
        "K": "horizon/k",
        "boundary": "horizon/boundary",
        "target": "horizon/target",
        "each update": "rollout/success",
        "ceiling at K": "rollout/success_ceiling",
        "tokens per update": "tokens/update",
        "tokens so far (right)": "tokens/total",
    }
    lines = drawn(figure)
    assert lines.keys() == {*columns, "success, mean of 5 updates"}
    for label, name in columns.items():
        known = [(row["update"], row[name]) for row in run if row[name] is not None]
        assert lines[label].get_xydata().tolist() == [list(map(float, point)) for point in known]
        assert name in GLOSSARY
    assert len({line.get_color() for line in lines.values()}) == 4
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "steps",
        "share of episodes",
        "tokens per update",
        "tokens so far",
    ]
    assert figure.get_suptitle() == "a run"


def test_no_update_at_all(draw):
    figure = draw([])
    assert drawn(figure) == {}
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["not recorded"] * 3


def test_columns_that_come_and_go_are_drawn_where_they_are(draw):
    run = rows(6)
    run[3]["rollout/success"] = None  # every environment failed
    del run[4]["horizon/k"]
    run[5]["tokens/update"] = math.nan  # Python's json writes it, and reads it
    lines = drawn(draw(run))
    assert lines["each update"].get_xdata().tolist() == [0, 1, 2, 4, 5]
    assert lines["success, mean of 5 updates"].get_xdata().tolist() == [0, 1, 2, 4, 5]
    assert lines["K"].get_xdata().tolist() == [0, 1, 2, 3, 5]
    assert lines["tokens per update"].get_xdata().tolist() == [0, 1, 2, 3, 4]


def test_the_smoothed_line_is_the_mean_of_the_last_five_known():
    # 1; (1+2)/2; unknown; (1+2+6)/3; (1+2+6+3)/4; (2+6+3+5)/4
    values = np.array([1, 2, np.nan, 6, 3, 5])
    np.testing.assert_allclose(_smooth(values), [1, 1.5, np.nan, 3, 3, 4])


def test_a_failure_leaves_the_older_picture(tmp_path):
    png = tmp_path / "figure.png"
    png.write_bytes(b"older")
    (tmp_path / "metrics.jsonl").write_text("damaged\n")
    with pytest.raises(StateError, match="line 1"):
        draw_run(tmp_path / "metrics.jsonl", png, title="x")
    assert png.read_bytes() == b"older"


def test_leaves_matplotlibs_global_state_alone(draw):
    before = dict(matplotlib.rcParams)
    draw(rows(3))
    assert dict(matplotlib.rcParams) == before
    code = "import sys, harness.run.figure; print('matplotlib.pyplot' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert child.stdout == "False\n"
