"""GRPO training of LLM agents on many environments at once, under any horizon controller."""

import sys
from importlib.util import find_spec

from eh_gym.errors import MissingExtraError

__all__: list[str] = []

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "tyro", "rich", "tensorboard", "matplotlib", "jinja2")
_missing = [name for name in _NEEDED if find_spec(name) is None]
if _missing:
    _error = MissingExtraError(
        f"the harness needs {', '.join(_missing)}; run, in a checkout: pip install -e '.[train]'. "
        "The environments and wrappers (import eh_gym) work without"
    )
    if sys.argv[0] == "-m":  # what Python says while it looks for the module of `python -m harness.NAME`
        sys.exit(f"error: {_error}")
    raise _error
