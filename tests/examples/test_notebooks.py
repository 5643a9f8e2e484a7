"""Each notebook runs from its first cell to its last, and is kept with its outputs."""

import json
import re
import sys
from pathlib import Path

import pytest

from harness.settings.grpo import flat_settings

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def stored_notebook(name):
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text("utf-8"))
    return notebook["metadata"], [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_is_kept_with_its_outputs_and_named_in_the_readme(path):
    _, cells = stored_notebook(path.stem)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = json.dumps([cell["outputs"] for cell in cells])
    assert "image/" in shown
    assert not re.search(r"/(home|root|tmp|Users|work)/|Traceback", shown)
    assert f"({path.name})" in (ROOT / "examples" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["saturation", "train"])
def test_the_stored_outputs_are_of_today_s_settings(name):
    metadata, cells = stored_notebook(name)
    exec("".join(cells[0]["source"]).rpartition("\nresult = ")[0], names := {})
    today, stored = flat_settings(json.loads(names["config"].to_json())), metadata["settings"]
    assert {key: today.get(key) for key in stored} == stored


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Runs a notebook by name, in a folder of its own, and returns its code cells with their outputs."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    kernel = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "this"}
    folder = tmp_path / "kernels" / "this"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))

    def run(name):
        notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
        resources = {"metadata": {"path": tmp_path}}
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="this", resources=resources).execute()
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    return run


def shown(cell, kind):
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.campaign
def test_the_wrapper_on_an_environment_of_one_s_own(execute):
    *_, figure, table = execute("own_environment")
    assert shown(figure, "image/png")
    assert table.outputs[0].text.count("K at the end") == 4


@pytest.mark.campaign
def test_training_and_looking_at_it(execute, tmp_path):
    _, table, figures, success, cut, scores = execute("train")
    assert "horizon/k" in shown(table, "text/plain")[0]
    assert ["K by update" in figure for figure in shown(figures, "text/html")].count(True) == 1
    assert "success True" in success.outputs[0].text
    assert "10 of 10 steps, success False, ended by horizon" in cut.outputs[0].text
    assert scores.outputs[0].text.startswith("before")
    # About what is stored, since other processors round otherwise.
    stored = "".join(stored_notebook("train")[1][-1]["outputs"][0]["text"])
    now, then = ([float(score) for score in re.findall(r"0\.\d+", text)] for text in (scores.outputs[0].text, stored))
    assert now == pytest.approx(then, abs=0.1)
    assert (tmp_path / "runs" / "EH-Cabinet-v0-elastic-seed0" / "evaluation.json").exists()


@pytest.mark.campaign
def test_the_saturation_curve_is_that_of_an_evaluation_at_each_k(execute):
    *_, figure, equal, table = execute("saturation")
    assert "Success and cost under each K" in shown(figure, "text/html")[0]
    at_k, on_curve = json.loads(shown(equal, "text/plain")[0].replace("(", "[").replace(")", "]"))
    assert at_k == pytest.approx(on_curve)
    assert "the largest" in table.outputs[0].text
