import sys
from pathlib import Path

import pytest


@pytest.fixture
def readers(monkeypatch):
    """The module whose functions run in the reader processes; they import it by name, from this folder."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import reader_processes

    yield reader_processes
    sys.modules.pop("reader_processes", None)
