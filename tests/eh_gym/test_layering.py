"""harness -> envs -> eh_gym, and nothing points back."""

import ast
import sys
from pathlib import Path

import pytest
from child import python

import eh_gym

ROOT = Path(eh_gym.__file__).resolve().parents[1]

# What each package may import besides the standard library and itself.
ALLOWED = {"eh_gym": {"numpy", "gymnasium"}, "eh_gym/worker": {"eh_gym"}, "envs": {"numpy", "gymnasium", "eh_gym"}}
# What runs in a backend's own virtualenv may import what is installed there; the fresh interpreters below show that
# importing the environment does not.
_WITH_APPWORLD = {
    *("appworld", "anyio", "fastapi_login", "freezegun", "httpx", "inflection", "sqlalchemy", "sqlmodel", "starlette"),
    "traitlets",
}
BACKEND = {
    ROOT / "envs" / "bfcl" / "backend": {"bfcl_eval", "mpmath"},
    ROOT / "envs" / "tau2" / "backend": {"tau2", "loguru", "toml"},
    ROOT / "envs" / "appworld" / "backend": _WITH_APPWORLD,
    ROOT / "envs" / "appworld" / "mini": _WITH_APPWORLD,
    ROOT / "envs" / "actors": {"ray"},  # when a pool is made
    ROOT / "envs" / "openenv": {"openenv", "pydantic", "uvicorn", "websockets"},
    ROOT / "eh_gym" / "integrations": {
        *("accelerate", "transformers"),  # each module needs its trainer; this one is TRL's
        *("httpx", "pydantic", "ray", "skyrl", "skyrl_gym", "verifiers", "verl"),
    },
}

_WALK = """
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
seen = 0
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    parts = module.name.split(".")
    needs_more = parts[-1] == "__main__" or {{"integrations", "openenv"}} & set(parts)
    if not needs_more and parts[-2:] != ["backend", "worker"] and parts[1:3] != ["tau2", "backend"]:
        importlib.import_module(module.name)
        seen += 1
wrong = sorted(set(m.partition(".")[0] for m in sys.modules) & {forbidden!r})
assert seen > 3, seen
assert not wrong, wrong
"""


def _imported(source):
    """The top-level package of every import in a source, those inside functions and TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:  # a relative import cannot leave its package
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", ALLOWED)
def test_no_file_imports_what_its_layer_may_not(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for file in files:
        allowed = ALLOWED[package] | {package}
        for folder, names in BACKEND.items():
            allowed |= names if folder in file.parents else set()
        wrong = {name for name in _imported(file.read_text("utf-8")) if name not in sys.stdlib_module_names | allowed}
        assert not wrong, f"{file.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("eh_gym", {"envs", "harness", "torch", "transformers", "bfcl_eval"}),
        ("envs", {"harness", "torch", "transformers", "bfcl_eval", "ray"}),
    ],
)
def test_a_fresh_interpreter_loads_nothing_of_another_layer_and_warns_of_nothing(package, forbidden):
    code = _WALK.format(package=package, forbidden=forbidden)
    python("-W", "error", "-c", code, cwd=ROOT)
