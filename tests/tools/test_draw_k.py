"""The figures of docs/trainers.md are drawn from what an adapter leaves."""

import json
import runpy
from pathlib import Path


def test_each_run_is_drawn(tmp_path, monkeypatch):
    def drawn(name, *runs):
        words = [str(tmp_path / name)]
        for k0, rows in runs:
            folder = tmp_path / f"{name}-{k0}"
            folder.mkdir()
            text = "".join(json.dumps({"horizon/k_real": k}) + "\n" for k in rows)
            (folder / "horizon.jsonl").write_text(text)
            words += [str(k0), str(folder)]
        monkeypatch.setattr("sys.argv", ["draw_k.py", *words])
        runpy.run_path(str(Path(__file__).parents[2] / "tools" / "draw_k.py"), run_name="__main__")
        return (tmp_path / name).read_text()

    shown = drawn("a.svg", (10, [15, 20]), (50, [30, 20]))
    assert shown == drawn("b.svg", (10, [15, 20]), (50, [30, 20]))
    assert (
        len({shown, drawn("c.svg", (10, [15, 21]), (50, [30, 20])), drawn("d.svg", (10, [15, 20]), (50, [30, 21]))})
        == 3
    )
