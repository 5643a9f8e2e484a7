"""The locks in requirements/ agree with setup.cfg's ranges, with docs/installation.md and with tox.ini; and every extra
has a virtualenv of its own to be tried in."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import harness

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(path.name for path in REQUIREMENTS.glob("*.txt"))

# Packages that break their users often: the upper bound is the next minor version after the locked one.
BREAKING = {"openenv", "peft", "tokenizers", "torch", "transformers", "trl", "tyro", "vllm"}
PYTHON_311 = {"python_version": "3.11", "python_full_version": "3.11.7"}


def setup():
    found = ConfigParser(interpolation=None)
    found.read(ROOT / "setup.cfg")
    return found


def lines(text):
    return [Requirement(line.split("#")[0]) for line in text.splitlines() if line.split("#")[0].strip()]


def ranges(*extras):
    """The ranges of setup.cfg on Python 3.11, of the core and of the extras named; of all extras if none is named."""
    found = setup()
    texts = {"core": found["options"]["install_requires"], **found["options.extras_require"]}
    texts = [texts[name] for name in ("core", *(extras or texts))]
    every = {}
    for requirement in (r for text in texts for r in lines(text)):
        if requirement.marker and not requirement.marker.evaluate(PYTHON_311):
            continue
        same = every.setdefault(requirement.name.lower(), requirement.specifier)
        assert same == requirement.specifier, f"{requirement.name} has two ranges in setup.cfg"
    return every


def locked(name):
    """Package -> its lines in a lock. A package has several where its version depends on the Python."""
    every = {}
    for requirement in lines((REQUIREMENTS / name).read_text("utf-8")):
        every.setdefault(requirement.name.lower(), []).append(requirement)
    return every


def version(requirement):
    (pin,) = requirement.specifier
    assert pin.operator == "==", requirement
    return Version(pin.version)


def on_python_311(requirements):
    (found,) = (r for r in requirements if r.marker is None or r.marker.evaluate(PYTHON_311))
    return version(found)


def test_the_workflow_has_every_python_of_setup_cfg():
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    minors = re.findall(r"Python :: 3\.(\d+)", setup()["metadata"]["classifiers"])
    rows = {minor: "" if minor == "11" else f"-e py3{minor},harness-py3{minor}" for minor in minors}
    assert dict(re.findall(r'\{python: "3\.(\d+)", what: "(.*)"\}', workflow)) == rows


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_every_package_within_setup_cfgs_range(name):
    ours = name in ("lock.txt", "lowest.txt", "vllm.txt", "vllm-cpu.txt")
    allowed = ranges() if ours else ranges("core")  # the other virtualenvs have no extra
    for package, requirements in locked(name).items():
        for requirement in requirements:
            assert version(requirement) in allowed.get(package, SpecifierSet()), f"{name}: {requirement}"


def test_the_lock_has_every_extra_but_those_for_gpus():
    extras = [name for name in setup()["options.extras_require"] if name not in ("vllm", "flash")]
    assert set(ranges(*extras)) <= set(locked("lock.txt"))
    assert set(ranges("train", "lora", "vllm")) <= set(locked("vllm.txt"))


@pytest.mark.parametrize("package", sorted(BREAKING))
def test_the_upper_bound_is_the_next_minor_after_the_newest_locked_version(package):
    locks = (locked(name) for name in ("lock.txt", "vllm.txt", "vllm-cpu.txt"))
    newest = max(version(r) for lock in locks for r in lock.get(package, []))
    (upper,) = (Version(s.version) for s in ranges()[package] if s.operator == "<")
    assert upper == Version(f"{newest.major}.{newest.minor + 1}"), f"{package} {newest} is locked"


def test_lowest_txt_holds_the_lower_bounds():
    lock = locked("lowest.txt")
    for package, allowed in ranges("train", "lora", "ray", "test").items():
        lower = [Version(s.version) for s in allowed if s.operator == ">="]
        # torch's oldest builds for a CPU are not everywhere, and a bound such as >=2.3 may name what was never
        # released.
        if package != "torch" and package in lock and lower:
            found = on_python_311(lock[package])
            assert found.release[: len(lower[0].release)] == lower[0].release, f"{package} {found}, allowed {allowed}"


def test_the_page_on_compatibility_says_what_is_locked_and_allowed():
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    rows = re.findall(r"^\| ([a-z]+) \| ([\d.]+) \| `(.+?)` \|", page, re.MULTILINE)
    assert BREAKING - {"vllm"} <= {package for package, _, _ in rows}
    lock, allowed = locked("lock.txt"), ranges()
    for package, pinned, bounds in rows:
        assert pinned == str(on_python_311(lock[package])), package
        assert SpecifierSet(bounds) == allowed[package], package
    assert str(on_python_311(locked("vllm.txt")["vllm"])) in page
    for trainer in ("skyrl", "skyrl-gym", "verifiers", "verl"):  # no extra has these; each has a lock of its own
        [pin] = locked(f"{trainer.removesuffix('-gym')}.txt")[trainer]
        assert f"{trainer} {version(pin)}" in page


def test_every_extra_is_tried_alone():
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    sections = [name for name in tox.sections() if name.startswith("testenv:extra-")]
    tried = [name for section in sections for name in re.findall(r"\w+", section.partition("extra-")[2])]
    assert sorted(tried) == sorted(["core", *setup()["options.extras_require"]])
    for section in sections:
        names = re.findall(r"\w+", section.partition("extra-")[2])
        commands = set(re.findall(r"^(\w+): python ", tox[section]["commands"], re.MULTILINE))
        assert commands == (set(names) if len(names) > 1 else set())


def test_the_commands_ask_for_all_packages_of_their_extra():
    train = {r.name for r in lines(setup()["options.extras_require"]["train"])}
    assert sorted(harness._NEEDED) == sorted(train - {"tomli"})
