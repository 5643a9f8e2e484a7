"""Runs the notebooks in examples/ and stores what they show: python tools/notebooks.py [NAME...], after a change of them.

The site renders the stored outputs. Messages to stderr are left out.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Runs those that are named, or all."""
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ["EH_CACHE_DIR"] = str(Path(folder, "cache"))  # so that a warm start is shown, not found
            notebook = nbformat.read(path, as_version=4)
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, timeout=1800, resources=resources, record_timing=False).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        notebook.metadata.language_info = {"name": "python"}
        path.write_text(nbformat.writes(notebook).replace(folder, "~"), encoding="utf-8")


if __name__ == "__main__":
    main()
