"""Runs the default tests with the newest release of everything that setup.cfg names, past its upper bounds.

    tox run -e newest
    tox run -e newest -- tests/harness/sampling    # some of the tests

It installs into the virtualenv that runs it, and ends with a table: package, locked, newest, installed where other
packages allow less, and the failed tests whose report names the package. A test can name several packages, so read its
report first.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# vLLM needs a GPU, and the site has no test among the default ones.
LEFT_OUT = ("vllm", "docs")


def direct() -> dict[str, Requirement]:
    """Package -> what setup.cfg asks for, for this Python."""
    setup = ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    texts = [setup["options"]["install_requires"], *(extras[name] for name in extras if name not in LEFT_OUT)]
    lines = (line.strip() for text in texts for line in text.splitlines())
    every = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {r.name: r for r in every if r.marker is None or r.marker.evaluate()}


def locked() -> dict[str, str]:
    """Package -> its version in the lock, for this Python."""
    lines = (ROOT / "requirements" / "lock.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
    return {r.name: str(r.specifier).lstrip("=") for r in pins if r.marker is None or r.marker.evaluate()}


def pip(*arguments: str) -> str:
    """Runs this interpreter's pip, and returns what it printed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


def newest(package: str) -> str:
    """The newest release that the index offers, pre-releases aside."""
    match = re.search(r"\(([^)]+)\)", pip("index", "versions", package))
    return match.group(1) if match else "?"


def failures(report: Path) -> Iterator[tuple[str, str]]:
    """The failed tests of a JUnit file, each with its whole report."""
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            for told in case.findall(kind):
                yield f"{case.get('classname')}::{case.get('name')}", f"{told.get('message')}\n{told.text}"


def names(package: str, report: str) -> bool:
    """Whether a report shows the package's code or speaks of it."""
    module = package.replace("-", "_").lower()
    return re.search(rf"site-packages/{module}\b|\b{re.escape(package)}\b", report, re.IGNORECASE) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Installs, tests and prints the table. Returns pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="as for pytest; all default tests if none are given")
    options = parser.parse_args(arguments)
    wanted = direct()
    packages = [f"{r.name}[{','.join(r.extras)}]" if r.extras else r.name for r in wanted.values()]
    pip("install", "--upgrade", "--upgrade-strategy", "eager", *packages)
    pip("install", "--no-deps", "--editable", str(ROOT))
    for command in (["-m", "envs", "install", "bfcl", "appworld", "--no-data"], [str(ROOT / "tools" / "smollm2.py")]):
        subprocess.run([sys.executable, *command], check=True)
    report = Path(tempfile.mkdtemp(), "newest.xml")
    how = ("-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--timeout", "900", f"--junitxml={report}")
    status = subprocess.run([sys.executable, "-m", "pytest", *how, *options.tests], check=False, cwd=ROOT).returncode
    failed = list(failures(report)) if report.exists() else []
    lock, rows = locked(), []
    for package in wanted:
        offered, present = newest(package), version(package)
        if lock.get(package) != offered or lock.get(package) != present.split("+")[0]:
            by = [test for test, told in failed if names(package, told)]
            held = "" if present.split("+")[0] == offered else f", installed {present}"
            rows.append(
                [package, lock.get(package, "-"), offered + held, f"{len(by)} tests, such as {by[0]}" if by else ""]
            )
    rows = [["package", "locked", "newest", "failed tests that name it"], *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip())
    print(
        f"{len(failed)} failed tests, {len(rows) - 1} packages that are newer than the lock, pytest's exit status "
        f"{status}"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
