import ast
import inspect
from pathlib import Path

from eh_gym import errors

ROOT = Path(__file__).parents[2]


def test_all_is_complete():
    assert set(errors.__all__) == {name for name, value in vars(errors).items() if inspect.isclass(value)}


def test_no_error_of_the_harness_stands_outside_the_tree():
    names = set(errors.__all__)
    for path in sorted((ROOT / "harness").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
            if any(base.endswith(("Error", "Exception")) for base in bases):
                assert bases & names, f"{path}: {node.name}"
