"""The exception tree: as drawn, complete, and with every error of the project in it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from eh_gym import errors

ROOT = Path(__file__).parents[2]


def drawn() -> dict[str, tuple[str, list[str]]]:
    """Each error that the module's first lines draw, with its parent and its other bases."""
    parents: list[str] = []
    found: dict[str, tuple[str, list[str]]] = {}
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        bare = line.lstrip("│├└─ ")
        if bare.split("  ")[0].split(" ")[0] not in errors.__all__:
            continue
        depth = (len(line) - len(bare)) // 4
        name, *others = bare.split("  ")[0].replace("(", "").replace(")", "").split()
        found[name] = (parents[depth - 1] if depth else "Exception", others)
        parents[depth:] = [name]
    return found


def test_every_error_is_drawn_and_exported() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert set(drawn()) == set(errors.__all__) == classes


@pytest.mark.parametrize("name", errors.__all__)
def test_the_tree_is_the_classes(name: str) -> None:
    parent, others = drawn()[name]
    bases = [base.__name__ for base in getattr(errors, name).__bases__]
    assert bases[0] == parent
    assert set(others) <= set(bases)


def test_no_error_of_the_harness_stands_outside_the_tree() -> None:
    """One `except EHError` shows a sentence for all of them."""
    names = set(errors.__all__)
    for path in sorted((ROOT / "harness").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
            if any(base.endswith(("Error", "Exception")) for base in bases):
                assert bases & names, f"{path}: {node.name}"  # type: ignore[attr-defined]


def test_a_lost_server_is_a_sampler_error_and_a_connection_error() -> None:
    http = pytest.importorskip("harness.sampling.vllm_http", reason="needs the train extra", exc_type=ImportError)

    assert issubclass(http.ServerGone, errors.SamplerError)
    assert issubclass(http.ServerGone, ConnectionError)
    assert issubclass(http.ServerRefused, errors.SamplerError)
