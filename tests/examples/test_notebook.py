"""The notebook runs from its first cell to its last, and is kept without outputs."""

import json
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "train.ipynb"


def test_it_is_kept_without_outputs():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_it_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings = (
        "updates=2, tasks_per_update=2, group_size=2, eval_tasks=2, warm_start={'episodes': 20, 'max_batches': 5}"
    )
    [training] = [cell for cell in notebook.cells if "updates=20" in cell.source]
    training.source = training.source.replace("updates=20", settings)
    kernel = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "this"}
    folder = tmp_path / "kernels" / "this"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="this", resources={"metadata": {"path": tmp_path}}
    ).execute()
    [table] = [cell for cell in notebook.cells if cell.source.startswith("import pandas")]
    assert "horizon/k" in table.outputs[-1].data["text/plain"]
    assert (tmp_path / "runs" / "EH-Cabinet-v0-elastic-seed0" / "evaluation.json").exists()
