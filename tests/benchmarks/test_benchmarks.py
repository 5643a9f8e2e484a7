import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
from child import python

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("flags", "played"))
KEPT = Path("benchmarks", "results")
RESULTS = sorted((ROOT / KEPT).glob("*.txt"))

# What the last table of each shows. Those of SmolLM2 take minutes even so.
QUICK = {
    "activations": r"\| all \| eager",
    "agents": "tiny ",
    "cache": "Qwen2.5-14B +8",
    "controller": "SharedHorizon.record",
    "pretrained": "K=15, seed 0$",
    "sampler": "2 ",
}
SLOW = {
    "appworld": "a further world",
    "bfcl": "episodes/s",
    "false_plateau": "a K for each kind, 56 updates",
    "learning": "1.00   K 50.0",
    "ray_envs": "EH-Cabinet-v0  4 at once",
    "settling": "Algorithm 2's rounding",
    "tau2": "expert   test 40/40",
    "train": "sorted, trimmed, 2 at once",
    "beside_trl": "tokens/s / TRL's: median",
}
NEEDS = {"appworld": "EH-AppWorld-v0", "bfcl": "EH-BFCL-v0", "tau2": "EH-Tau2-v0"}
ELSEWHERE = [  # other tox environments have the packages, and name the test
    ("vllm", "logits", " float32   float32 "),
    ("openenv", "served_envs", r"^EH-Cabinet-v0 +4 at once( +[\d.]+x?){5}$"),
]


@pytest.mark.parametrize("name", QUICK)
def test_smoke(run, name):
    out = run(name, "--smoke")
    assert out.startswith("$ ")
    assert re.search(rf"^ *{QUICK[name]}", out, re.MULTILINE)


@pytest.mark.campaign
@pytest.mark.parametrize("name", SLOW)
def test_smoke_of_what_starts_processes(installed, tmp_path, name):
    if name == "ray_envs":
        pytest.importorskip("ray")
    elif name in NEEDS:
        installed(NEEDS[name])
    runs = ["--runs", str(tmp_path)] if name in ("settling", "false_plateau", "learning") else []
    assert SLOW[name] in smoke_in_a_process(name, *runs)


@pytest.mark.parametrize(("package", "name", "shown"), ELSEWHERE, ids=["vllm", "openenv"])
def test_smoke_of_what_needs_a_package_or_tells_so_in_one_line(run, package, name, shown):
    if importlib.util.find_spec(package):
        assert re.search(shown, smoke_in_a_process(name), re.MULTILINE)
        return
    with pytest.raises(SystemExit, match=rf"(?i)^error: .*{package}.* install"):
        run(name, "--smoke")


def test_serving_needs_no_extra_for_training():
    code = "import sys; sys.modules['tyro'] = None; import served_envs"
    python("-c", code, cwd=ROOT / "benchmarks", env={**os.environ, "PYTHONPATH": str(ROOT)})


def smoke_in_a_process(name, *more):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return python(f"benchmarks/{name}.py", "--smoke", *more, cwd=ROOT, env=env)


def test_a_run_that_fails_says_why(run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"^error: the run in .* failed; its last line: error: .*--out"):
        run("settling", "--runs", str(tmp_path / "file"))


def test_every_benchmark_is_tried():
    assert {*QUICK, *SLOW, *(name for _, name, _ in ELSEWHERE)} == {*NAMES}


def cells(line):
    return [f"{float(word):g}" if re.fullmatch(r"[+-]?\d+\.?\d*|nan|NaN", word) else word for word in line.split()]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["cache"], "cache-simulated.txt"),
        (
            ["learning", "--from", *(f"{KEPT}/{name}-runs.csv" for name in ("learning", "recurring"))],
            "learning-cpu.txt",
        ),
        (["learning", "--from", f"{KEPT}/recurring-runs.csv"], "recurring-cpu.txt"),
        (["learning", "--from", f"{KEPT}/equal-runs.csv"], "equal-cpu.txt"),
        (["learning", "--from", f"{KEPT}/tau2-runs.csv"], "tau2-arms-cpu.txt"),
        (["pretrained"], "pretrained-bfcl-cpu.txt"),
        (["pretrained", f"{KEPT}/pretrained-openended"], "pretrained-openended-cpu.txt"),
        (["pretrained", f"{KEPT}/pretrained-bfcl-recurring"], "pretrained-bfcl-recurring-cpu.txt"),
    ],
)
def test_the_tables_that_are_kept_follow_from_the_runs_that_are_kept(run, monkeypatch, words, result):
    monkeypatch.chdir(ROOT)
    kept = [cells(line) for line in (ROOT / KEPT / result).read_text().splitlines()]
    lines = [line for line in run(*words).splitlines() if re.search(r"\d\.\d", line) and "torch" not in line]
    printed = [cells(line) for line in lines]
    assert len(printed) > 10
    assert [line for line in printed if line not in kept] == []
    if "cache" in words:  # episodes that are admitted compute little more than they must; all, many times as much
        assert all(float(row[-2]) <= 1.3 for row in printed)
        assert max(float(row[-3]) for row in printed) > 25


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_names_a_command_that_there_is(run, path, capsys):
    commands = re.findall(r"^\$ (?:\w+=\w+ )*python (?:-u )?((?:.+\\\n)*.+)", path.read_text(), re.MULTILINE)
    assert commands
    for words in (shlex.split(command.replace("\\\n", " ")) for command in commands):
        if words[0] == "-m":
            continue  # tests/docs tries the commands of the package
        assert (ROOT / words[0]).is_file(), words
        if words[0].startswith("benchmarks/") and words[0] != "benchmarks/ray_envs.py":
            with pytest.raises(SystemExit, match=r"^0$"):
                run(Path(words[0]).stem, *words[1:], "--help")  # which comes last, so what is before it is parsed
            known = capsys.readouterr().out
            assert [word for word in words if word.startswith("--") and word not in known] == [], words
