import importlib
import os
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example by name; without what it needs the test is skipped, or fails under EH_REQUIRE_BACKENDS=1."""
    monkeypatch.syspath_prepend(EXAMPLES)
    before = set(sys.modules)

    def load(name, *needed):
        for package in needed:
            try:
                importlib.import_module(package)
            except ImportError as missing:
                # TRL has no version for Python 3.10.
                if os.environ.get("EH_REQUIRE_BACKENDS") == "1" and sys.version_info >= (3, 11):
                    pytest.fail(f"{missing}; pip install -e '.[train,examples,openai]'")
                pytest.skip(str(missing))
        return importlib.import_module(name)

    yield load
    for path in EXAMPLES.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)
