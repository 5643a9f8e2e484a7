"""Runs the notebooks in examples/ and stores what they show: python tools/notebooks.py [NAME...], after a change of
them.

The site renders the stored outputs. Messages to stderr are left out. The metadata have the settings of a training run,
for a test that they are today's.
"""

import base64
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from harness.settings.grpo import flat_settings

ROOT = Path(__file__).parents[1]
_IMAGE = re.compile(r"(?<=svg\+xml;base64,)[\w+/=]+")


def _on_one_line(image: re.Match[str]) -> str:
    """An SVG image without its line breaks and indents, which are a tenth of it."""
    return base64.b64encode(re.sub(rb"\s*\n\s*", b" ", base64.b64decode(image[0]))).decode()


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
            for saved in Path(folder).glob("runs/*/config.json"):
                notebook.metadata.settings = flat_settings(json.loads(saved.read_text("utf-8")))
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
                for output in cell.outputs:
                    if "text/html" in output.get("data", {}):
                        output.data["text/html"] = _IMAGE.sub(_on_one_line, output.data["text/html"])
        notebook.metadata.language_info = {"name": "python"}
        path.write_text(nbformat.writes(notebook).replace(folder, "~"), encoding="utf-8")


if __name__ == "__main__":
    main()
