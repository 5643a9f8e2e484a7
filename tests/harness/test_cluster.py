import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from harness.training.command import read_command

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "recipes" / "cluster"
# What torchrun's processes must have: the interface between the machines, and segments that grow.
NETWORK = '[ "$GLOO_SOCKET_IFNAME$NCCL_SOCKET_IFNAME$PYTORCH_ALLOC_CONF" = ib0ib0expandable_segments:True ] || exit 1'


@pytest.fixture
def shell(tmp_path):
    """Runs a script with stand-ins for Slurm and torchrun; returns the words of its last command."""
    for name, does in (
        ("srun", f'{NETWORK}; [ "$SRUN_CPUS_PER_TASK" = 64 ] && printf "%q " "$@"'),  # else Slurm gives it one core
        ("torchrun", f'{NETWORK}; printf "%q " torchrun "$@"'),
        ("scontrol", "echo a; echo b"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)

    def run(script, *words, **settings):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NIC": "ib0", **settings}
        done = subprocess.run(
            ["bash", "-c", script, "bash", *words], env=env, capture_output=True, text=True, check=True
        )
        return shlex.split(done.stdout)

    return run


def check(words):
    own, flags = words[: words.index("-m")], words[words.index("-m") + 2 :]
    given = dict(zip(own[1::2], own[2::2], strict=True))
    assert (given["--nnodes"], given["--nproc-per-node"], given["--rdzv-endpoint"]) == ("2", "8", "a:29400")
    assert words[words.index("-m") + 1] == "harness.grpo"
    if "--resume" in flags:
        assert flags == ["--resume", "/shared/runs/14b"]
        return
    assert read_command(flags).config.out == Path("/shared/runs/14b")


def test_slurm_s_command_begins_a_run_and_resumes_it(shell, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = (CLUSTER / "slurm.sh").read_text()
    settings = {"SLURM_JOB_NODELIST": "[a-b]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "64"}
    for words in (("recipes/bfcl-qwen2.5-14b.toml", "/shared/runs/14b"), ("--resume", "/shared/runs/14b")):
        check(shell(script, *words, **settings))
    assert "#SBATCH --nodes=2\n" in script


def test_skypilot_s_command_begins_a_run_and_resumes_it(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    task = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())
    settings = {
        "SKYPILOT_NODE_IPS": "a\nb",
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": task["resources"]["accelerators"].partition(":")[2],
        "SKYPILOT_TASK_ID": "sky-7",
        **task["envs"],
    }
    script = task["run"].replace("source ~/venv/bin/activate", "")
    check(shell(script, **settings))
    (tmp_path / "14b" / "checkpoints").mkdir(parents=True)
    words = shell(script, **{**settings, "RUN": str(tmp_path / "14b")})
    assert words[-2:] == ["--resume", str(tmp_path / "14b")]
    assert "[train,lora,flash,vllm]" in task["setup"]  # what any recipe needs


def test_torchrun_hands_every_flag_of_a_run_on():
    pages = (ROOT / "docs" / "reference" / "flags.md").read_text()
    for flag in re.findall(r"^\| `(--[\w.-]+)`", pages, re.MULTILINE):
        given = get_args_parser().parse_args(["--nproc-per-node", "2", "-m", "harness.grpo", flag, "x"])
        assert (given.training_script, given.training_script_args) == ("harness.grpo", [flag, "x"])
