"""GRPO training of LLM agents on many environments at once, under any horizon controller."""

import sys
from importlib.util import find_spec

from eh_gym.errors import EHError, ForeignPackageError, MissingExtraError
from eh_gym.foreign import shadow

__all__: list[str] = []


def _end(error: EHError) -> None:
    """Raises the error, or ends `python -m harness.NAME` with one line: Python imports this package before the command."""
    if sys.argv[0] == "-m":  # what Python says while it looks for the module
        sys.exit(f"error: {error}")
    raise error


if _foreign := shadow("envs"):
    _end(ForeignPackageError(_foreign))

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "tyro", "rich", "tensorboard", "matplotlib", "jinja2")
_missing = [name for name in _NEEDED if find_spec(name) is None]
if _missing:
    _end(
        MissingExtraError(
            f"the harness needs {', '.join(_missing)}; run, in a checkout: pip install -e '.[train]'. "
            "The environments and wrappers (import eh_gym) work without"
        )
    )
