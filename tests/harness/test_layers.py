"""The rooms of harness/: a folder has one subject, and each folder imports only those below it."""

import ast
from pathlib import Path

import pytest
from child import python

import harness
from harness.__main__ import COMMANDS as LISTED

ROOT = Path(harness.__file__).parent

LAYERS = [
    *("types", "agents", "settings", "records", "terminal", "chat", "model", "machine", "rollout", "sampling"),
    *("update", "clone", "evaluation", "training", "export", "sweep", "report"),
]
"""The folders, the lowest first. tests/agents' frameworks have no packages of settings/."""

COMMANDS = ["evaluate", "grpo", "export.__main__", "report.__main__", "sweep.__main__"]
TORCH_FREE = {"types", "settings"}


def _imports(file):
    return {f"{name}.".split(".")[1] for name in _modules(file)}


def _modules(file):
    """The modules of harness/ that a file imports, inside functions too; type hints need nothing at run time."""
    found = set()
    tree = ast.parse(file.read_text("utf-8"))
    hints = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in hints:
            continue
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name for name in names if f"{name}.".startswith("harness.")}
    return found


def test_every_folder_has_its_place_and_every_command_is_a_module():
    assert {p.name for p in ROOT.glob("*.py")} == {
        f"{name}.py" for name in ("__init__", "__main__", "evaluate", "grpo")
    }
    assert {p.parent.name for p in ROOT.glob("*/__init__.py")} == set(LAYERS)
    assert not set(LAYERS) & set(harness.__all__)  # a folder that is imported would take the name
    assert {*harness.__all__} <= {*dir(harness)}
    assert set(LISTED) == {name.removesuffix(".__main__") for name in COMMANDS}
    for name in COMMANDS:
        assert 'if __name__ == "__main__":' in (ROOT / f"{name.replace('.', '/')}.py").read_text("utf-8")


@pytest.mark.parametrize("layer", LAYERS)
def test_no_file_of_a_folder_names_one_above_it(layer):
    below = set(LAYERS[: LAYERS.index(layer) + 1])
    for file in (ROOT / layer).rglob("*.py"):
        assert _imports(file) <= below, file


def test_no_files_import_each_other_in_a_circle():
    def module(file):
        return ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)

    needs = {module(file): _modules(file) for file in ROOT.rglob("*.py")}
    while free := [name for name, needed in needs.items() if not needed & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs


def test_two_folders_have_no_file_of_one_name():
    names = [file.name for file in ROOT.glob("*/**/*.py") if "settings" not in file.parts and file.stem[:2] != "__"]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_the_package_loads_nothing_and_its_settings_and_commands_no_torch():
    modules = [f"harness.{name}" for name in COMMANDS]
    modules += [f"harness.{file.parent.name}.{file.stem}" for name in TORCH_FREE for file in (ROOT / name).glob("*.py")]
    imports = "; ".join(f"import {name.removesuffix('.__init__')}" for name in modules)
    code = "import sys, harness; assert not {'torch', 'transformers', 'rich', 'tyro'} & {*sys.modules}; "
    code += "from harness import GRPOConfig, WarmStart, evaluate_policy, train; GRPOConfig.recipe('quickstart'); "
    loaded = set(python("-W", "error", "-c", f"{code}{imports}; print(*sys.modules)").split())
    assert {"tyro", "harness.grpo", "harness.settings.grpo"} <= loaded
    assert not loaded & {"torch", "transformers", "tokenizers", "tensorboard", "matplotlib", "jinja2"}


def test_no_file_is_too_long():
    lengths = {file: len(file.read_text("utf-8").splitlines()) for file in ROOT.rglob("*.py")}
    assert max(lengths.values()) <= 400, max(lengths, key=lambda file: lengths[file])


def test_the_loop_reads_in_one_look():
    tree = ast.parse((ROOT / "training" / "loop.py").read_text("utf-8"))
    [loop] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train_loop"]
    inside = list(ast.walk(loop))[1:]
    assert not [node for node in inside if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    assert (loop.end_lineno or 0) - loop.lineno < 90
    stored = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert len(stored | {argument.arg for argument in loop.args.args + loop.args.kwonlyargs}) < 20
