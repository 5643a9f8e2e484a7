"""The bundle, from a folder of wheels to an installed package, without a registry."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "vllm-bundle"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel(folder: Path, name: str, *needs: str, version: str = "1.0", kib: int = 0) -> None:
    """A package that says its version, with some ballast."""
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{name}.bin", bytes(1024 * kib))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """eh_engine needs eh_kernels and eh_torch, of which there are two versions."""
    folder = tmp_path / "registry"
    folder.mkdir()
    wheel(folder, "eh_engine", "eh-kernels", "eh-torch>=1", kib=300)
    wheel(folder, "eh_kernels", kib=200)
    wheel(folder, "eh_torch")
    wheel(folder, "eh_torch", version="2.0")
    return folder


def bundle(registry: Path, out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(TOOL), str(out), "--packages", "eh-engine", *flags]
    return subprocess.run(
        [*words, "--", "--no-index", f"--find-links={registry}"], capture_output=True, text=True, timeout=120
    )


def install(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(out / "install"), *words], capture_output=True, text=True, timeout=120)


def test_what_is_packed_here_is_installed_there(registry: Path, tmp_path: Path) -> None:
    out, there = tmp_path / "bundle", tmp_path / "there"
    done = bundle(registry, out, "--piece-mib", "0.125")
    assert done.returncode == 0, done.stderr
    assert (out / "requirements.txt").read_text() == "eh-engine==1.0\neh-kernels==1.0\neh-torch==2.0\n"
    parts = sorted(out.glob("part-*"))
    assert len(parts) == 4  # 300 + 200 KiB and some headers, in pieces of 128 KiB
    assert max(part.stat().st_size for part in parts) == 128 * 1024
    venv.create(there, with_pip=True)
    done = install(out, str(there / "bin" / "python"))
    assert done.returncode == 0, done.stderr
    code = "import eh_engine, eh_kernels, eh_torch; print(eh_torch.VERSION)"
    said = subprocess.run([there / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "2.0\n"


def test_what_the_machine_has_is_kept_to_and_not_packed(registry: Path, tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("# a note\nEH_Torch==1.0+cu130\nlocal @ file:///somewhere\n")
    done = bundle(registry, tmp_path / "bundle", "--have", str(freeze))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundle" / "requirements.txt").read_text() == "eh-engine==1.0\neh-kernels==1.0\n"
    freeze.write_text("eh-torch==0.5\n")
    done = bundle(registry, tmp_path / "none", "--have", str(freeze))
    assert done.returncode != 0
    assert "(constraint) eh-torch==0.5" in done.stdout  # pip says what does not go together


def test_a_damaged_piece_and_another_python_are_refused(registry: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    assert bundle(registry, out).returncode == 0
    part = out / "part-000"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = install(out, sys.executable, "--target", str(tmp_path / "site"))
    assert done.returncode != 0
    assert "part-000" in done.stdout + done.stderr
    part.write_bytes(content)
    script = out / "install"
    script.write_text(script.read_text().replace(f'= "{PYTHON}"', '= "2.7"'))
    done = install(out, sys.executable, "--target", str(tmp_path / "site"))
    assert (done.returncode, "these wheels are for Python" in done.stderr) == (1, True)
    assert not (tmp_path / "site").exists()


def test_a_folder_with_something_in_it_is_left_alone(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    done = bundle(registry, tmp_path)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
    assert {p.name for p in tmp_path.iterdir()} == {"kept", "registry"}
