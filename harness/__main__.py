"""`python -m harness`: lists the commands. The scripts eh-train, eh-evaluate and eh-report begin here, too."""

import os
import sys
from importlib import import_module

from eh_gym.errors import MissingExtraError
from harness import require_packages

COMMANDS = {
    "grpo": "trains an agent (eh-train)",
    "evaluate": "measures a policy on held-out tasks (eh-evaluate)",
    "report": "makes a page of runs and evaluations (eh-report)",
    "sweep": "compares settings, over several seeds",
    "export": "writes episodes as a benchmark's own files",
}
"""The commands of this package, and what each one does."""


def main() -> None:
    width = max(map(len, COMMANDS))
    print("python -m harness.COMMAND --help")
    for name, what in COMMANDS.items():
        print(f"  {name:<{width}}  {what}")
    print("The environments have a command of their own: python -m envs (eh-envs)")


def train() -> None:
    """The script eh-train: ``python -m harness.grpo``."""
    _run("grpo")


def evaluate() -> None:
    """The script eh-evaluate: ``python -m harness.evaluate``."""
    _run("evaluate")


def report() -> None:
    """The script eh-report: ``python -m harness.report``."""
    _run("report.__main__")


def _run(command: str) -> None:
    try:
        require_packages()
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    sys.path.append(os.getcwd())  # for agents and controllers; last, so that a folder envs/ there hides nothing
    import_module(f"harness.{command}").main()


if __name__ == "__main__":
    main()
