"""Changes the source in one place at a time, and runs the tests of its folder: which changes does no test notice?

    python tools/mutate.py harness/update -n 20 --seed 1 -- -k "not slow"  # 20 random mutants; pytest's flags after --
    python tools/mutate.py harness/update -n 20 --seed 1 --only 3 7  # two of them again, after a new test

It works in a copy of the tree, and runs the tests of the mirrored folder, the likeliest file first, until one fails. If
a mutant survives, read it before you write a test: it may be equivalent, so that no input shows it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PAIRS = ("Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or", "BitOr BitAnd", "Add Sub", "Mult Div")
_OTHER = {one: another for pair in map(str.split, _PAIRS) for one, another in (pair, pair[::-1])}
_OTHER |= dict.fromkeys(("FloorDiv", "Mod", "Pow"), "Mult")
_MESSAGE = re.compile(r"(Error|Warning|warn|print|log|info|debug)$")  # what only builds a message is left as it is


def other(operator: ast.AST) -> Any:
    """The operator that takes this one's place."""
    return getattr(ast, _OTHER[type(operator).__name__])()


def changes(node: ast.AST) -> Iterator[str]:
    """What may stand where the node stands."""
    match node:
        case ast.Compare(left, [op], [right]):
            yield ast.unparse(ast.Compare(left, [other(op)], [right]))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(other(op), values))
            yield from (ast.unparse(value) for value in values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield ast.unparse(operand)
        case ast.BinOp(left, op, right) if type(op).__name__ in _OTHER:
            yield ast.unparse(ast.BinOp(left, other(op), right))
        case ast.AugAssign(target, op, value) if type(op).__name__ in _OTHER:
            yield ast.unparse(ast.AugAssign(target, other(op), value))
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield repr(value + 1)
        case ast.Constant(str() as value) if value and " " not in value:
            yield repr(f"X{value}")
        case ast.Expr(ast.Call() | ast.Await(ast.Call())):
            yield "pass"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"


def mutants(source: bytes) -> list[tuple[int, int, int, bytes]]:
    """The line, the first and the last byte, and the text to stand there, for each change of a file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []

    def visit(node: ast.AST) -> None:
        match node:
            case ast.JoinedStr() | ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr(ast.Constant()):
                return
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if _MESSAGE.search(name):
                return
        texts = [(node, text) for text in changes(node)]
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            texts.append((node.test, f"not ({ast.unparse(node.test)})"))
        if isinstance(node, ast.comprehension):
            texts += [(test, f"not ({ast.unparse(test)})") for test in node.ifs]
        if isinstance(node, ast.withitem) and node.optional_vars is None:
            texts.append((node.context_expr, "__import__('contextlib').nullcontext()"))
        for place, text in texts:
            begin = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            found.append((place.lineno, begin, end, (f"({text})" if isinstance(place, ast.expr) else text).encode()))
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "type_params"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child)

    visit(ast.parse(source))
    return found


def tests_of(path: Path, tree: Path) -> list[Path]:
    """The test files of the mirrored folder; those come first that have the file's name, and then those that import
    it.
    """
    folder = next(place for parent in path.parents if (place := tree / "tests" / parent).is_dir())
    module = ".".join(path.with_suffix("").parts)
    named = f"test_{path.stem}.py"
    return sorted(
        folder.rglob("test_*.py"), key=lambda test: (test.name != named, module not in test.read_text(), test)
    )


def run(tests: list[Path], tree: Path, pytest: list[str], limit: float) -> tuple[str, str]:
    """What the tests say of the tree as it stands: survived, killed or timeout; and the test that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb", "line", "--timeout", "60", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *pytest, *map(str, tests)],
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a mutant may have left, too
        process.wait()
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.*)", text, re.MULTILINE)
    verdict = "survived" if code == 0 else "timeout" if code is None or "Timeout (>" in text else "killed"
    return verdict, failed[1] if failed else text[-200:].replace("\n", " ") if code else ""


def main() -> None:
    """Prints a line for each mutant, and the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="folders and files of the source, from the root")
    parser.add_argument("-n", type=int, default=20, help="how many mutants are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="run only these of the drawn ones")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of one mutant")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    flags, pytest = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]

    os.chdir(ROOT)
    files = sorted({file for path in flags.paths for file in ([path] if path.suffix else path.rglob("*.py"))})
    sources = {file: file.read_bytes() for file in files}
    every = [(file, *mutant) for file in files for mutant in mutants(sources[file])]
    drawn = list(enumerate(random.Random(flags.seed).sample(every, min(flags.n, len(every))), 1))
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="eh-mutants-") as folder:
        tree = Path(folder)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        for tests in {frozenset(tests_of(file, tree)) for file in files}:
            verdict, reason = run(sorted(tests), tree, pytest, flags.limit)
            if verdict != "survived":
                sys.exit(f"the tests must pass before anything is changed: {reason}")
        for number, (file, line, begin, end, text) in drawn:
            if flags.only and number not in flags.only:
                continue
            source = sources[file]
            (tree / file).write_bytes(source[:begin] + text + source[end:])
            began = time.monotonic()
            verdict, reason = run(tests_of(file, tree), tree, pytest, flags.limit)
            (tree / file).write_bytes(source)
            verdicts.append(verdict)
            change = " ".join(f"{source[begin:end].decode()} -> {text.decode()}".split())
            print(
                f"{number:3} {verdict:8} {time.monotonic() - began:4.0f} s  {file}:{line}  {change}  {reason}",
                flush=True,
            )
    noticed = len(verdicts) - verdicts.count("survived")
    print(f"{noticed} of {len(verdicts)} noticed, of them {verdicts.count('timeout')} by a limit of time")


if __name__ == "__main__":
    main()
