"""Every code block of the documentation: Python and commands are run, and those too slow or too big are parsed.

The blocks of a page share one namespace, from top to bottom. A block that no test can run says why, in the line before
it: `<!-- not run: needs a GPU -->`.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from torch.distributed.run import get_args_parser

from eh_gym.errors import MissingBackendError
from harness.evaluate import defaults
from harness.settings.command_line import flag_of, parse
from harness.settings.recipe import QUICKSTART
from harness.settings.section import flat
from harness.training.command import read_command

# runpy's, because these tests run a module in a process that has imported it.
pytestmark = pytest.mark.filterwarnings("ignore:.* found in sys.modules after import of package:RuntimeWarning")

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference.py"))
PAGES = REFERENCE["pages"]()
# Commands that are not this project's to check.
THIRD_PARTY = {
    *("appworld", "bfcl", "tau2", "ray", "vllm", "vf-eval", "docker", "sbatch", "sky"),
    *("sh", "cd", "curl", "export", "ssh", "for", "done", "hf", "nvidia-smi", "source"),
}


def _name(page):
    return str(page.relative_to(ROOT))


def _commands(text):
    commands = []
    for line in re.split(r"\n|&&", text.replace("\\\n", " ")):
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            commands.append(words)
    return commands


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language == "python" for b in REFERENCE["blocks"](p))], ids=_name
)
def test_python_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look up types
    namespace = vars(module)
    for block in REFERENCE["blocks"](page):
        if block.language == "python" and block.not_run is None:
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            try:
                exec(code, namespace)
            except MissingBackendError as error:
                if os.environ.get("EH_REQUIRE_BACKENDS") == "1":
                    raise
                pytest.skip(str(error))


RUN, NOT_RUN = (
    [
        pytest.param(command, id=f"{_name(page)}:{block.line} {' '.join(command)}"[:100])
        for page in PAGES
        for block in REFERENCE["blocks"](page)
        if block.language in ("", "console", "sh", "bash") and (block.not_run is None) == run
        for command in _commands(block.text)
    ]
    for run in (True, False)
)


@pytest.mark.parametrize("command", RUN)
def test_commands_run(command, monkeypatch, tmp_path):
    assert command[:2] == ["python", "-m"], "only modules are run here; say `<!-- not run: WHY -->` of anything else"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", command[2:])
    assert not _status(command[2])


def _status(module):
    """Runs a module as `python -m` does, in this process: importing torch again would take most of the time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy's: the module was imported before
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return end.code
    return 0


IN_TEXT = [
    pytest.param(command, id=f"{_name(page)} {' '.join(command)}"[:100])
    for page in PAGES
    if page.name != "CHANGELOG.md"  # what was, not what is
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text())
    for code in (token.children or [])
    if code.type == "code_inline"
    and code.content.startswith(("python ", "torchrun ", "pip install", "tox ", "tools/vllm"))
    for command in _commands(code.content)
]


IN_RECIPES = [
    pytest.param(shlex.split(line.removeprefix("#")), id=f"{_name(recipe)}: {line.removeprefix('#').strip()}")
    for recipe in sorted((ROOT / "recipes").glob("*.toml"))
    for line in recipe.read_text().splitlines()
    if line.startswith(("#   python", "#   torchrun"))
]


READERS_ENV = """
import gymnasium as gym
class NumberEnv(gym.Env):
    def __init__(self, split="train"): ...
for name in ("Number-v0", "Maze-v0"):
    gym.register(name, NumberEnv)
"""


@pytest.fixture(scope="module")
def quick_start():
    return read_command([]).config.to_json()


@pytest.fixture
def readers_folder(quick_start, tmp_path, monkeypatch):
    """Where a reader gives the commands: a checkout with environments of the reader's own, and a run."""
    for name in ("recipes", "examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("my_env.py", "my_package.py"):
        (tmp_path / name).write_text(READERS_ENV)
    for name in ("EH-Cabinet-v0-elastic-seed0", "node-agent-js-elastic-seed0"):
        folder = tmp_path / "runs" / name
        (folder / "model").mkdir(parents=True)
        (folder / "config.json").write_text(quick_start)
        (folder / "versions.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("command", NOT_RUN + IN_TEXT + IN_RECIPES)
def test_commands_are_understood(command, readers_folder):
    _understand(command)


def _understand(command):
    """Parses a command with the very parser that would parse it."""
    program, *words = command
    if {"…", "FILE", "benchmarks/NAME.py"} & {*words}:
        return
    if program == "python" and words[0] == "-m":
        _module(words[1], words[2:])
    elif program == "python":
        script = ROOT / words[0]
        assert script.is_file(), script
        flags = {word.split("=")[0] for word in words if word.startswith("--")}
        assert all(f'"{flag}"' in script.read_text() or flag == "--help" for flag in flags), flags
    elif program == "torchrun":
        launched = get_args_parser().parse_args(words)
        assert launched.module, "torchrun -m MODULE"
        _module(launched.training_script, launched.training_script_args)
    elif program == "pip":
        _pip(words)
    elif program == "tox":
        settings = ConfigParser()
        settings.read(ROOT / "tox.ini")
        chosen = [words[i + 1] for i, word in enumerate(words) if word == "-e"]
        assert all(f"testenv:{name}" in settings for name in chosen), chosen
    elif program.startswith("tools/"):
        done = subprocess.run([ROOT / program, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        flags = {word for word in words[: words.index("--") if "--" in words else None] if word.startswith("--")}
        shown = (
            done.stdout + subprocess.run([ROOT / program, *words[:1], "--help"], capture_output=True, text=True).stdout
        )
        assert all(flag in shown for flag in flags), flags
    else:
        assert program in THIRD_PARTY, f"no check for {program!r}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_that_installs_extras_installs_those_that_its_commands_need(page):
    commands = [c for b in REFERENCE["blocks"](page) if b.language == "" for c in _commands(b.text)]
    installed = {
        extra for c in commands if c[0] == "pip" for w in c if w.startswith(".[") for extra in w[2:-1].split(",")
    }
    needed = set()
    for command in commands if "train" in installed else ():
        if command[:3] == ["python", "-m", "harness.grpo"] and not {"…", "--resume"} & {*command}:
            run = flat(read_command(command[3:]).config)
            uses = {"lora": run["lora_rank"], "vllm": run["sampler"] == "vllm", "ray": run["env_workers"] == "ray"}
            needed |= {extra for extra, used in uses.items() if used}
    assert needed <= installed


def test_every_recipe_names_its_command():
    named = {Path(flag_of(command.values[0], "recipe", QUICKSTART)).stem for command in IN_RECIPES}
    assert named == {path.stem for path in (ROOT / "recipes").glob("*.toml")}


def _module(module, words):
    words = [word if word not in ("FOLDER", "X") else "folder" for word in words]
    words = [word for word in words if word not in ("--help", "--help-all", "--")]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if module == "harness.grpo" and "--resume" not in words:
            read_command(words)
        elif module == "harness.evaluate" and words and not words[0].startswith("-"):
            parse(defaults(words[1:], Path(words[0])), words[1:], prog=module)
        elif module in REFERENCE["COMMANDS"]:
            parse(REFERENCE["COMMANDS"][module](words), words, prog=module)
        elif module == "envs":
            with pytest.raises(SystemExit, match="0"):
                runpy.run_module("envs.__main__")["main"]([*words, "--help"])
        else:
            others = ("harness", "mkdocs", "vllm.entrypoints.openai.api_server", "build", "venv", "appworld.evaluator")
            assert module in others, f"no check for {module}"


def _pip(words):
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    for word in words:
        if word.startswith(".["):
            extras = set(word[2:-1].split(","))
            assert extras <= set(settings["options.extras_require"]), extras
    for i, word in enumerate(words):
        if word == "-r":
            assert (ROOT / words[i + 1]).is_file()
