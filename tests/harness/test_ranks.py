"""One, two and four ranks (gloo, on the CPU) do the same updates; one that dies stops the run, and any number resumes it."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from eh_gym.errors import ConfigError, StateError
from harness.batch import deal
from harness.checkpoint import load_training_state, save_checkpoint, save_training_state
from harness.config import GRPOConfig, preset
from harness.display import Display
from harness.grpo import prepare, train
from harness.metrics import read_metrics
from harness.optimizer import make_optimizer
from harness.policy import Policy
from harness.ranks import Ranks, check_ranks, copy_weights, join, whole
from harness.sampling.base import Sample
from harness.trajectory import Trajectory, Turn
from harness.update import LossSettings, update_policy


def on_ranks(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns on each of `size` forked ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child(rank: int) -> None:
        os.environ |= {**address, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        os.environ["TORCHELASTIC_RUN_ID"] = "test"
        torch.set_num_threads(1)
        ranks = join(device="cpu", timeout_s=60)
        answers.put((rank, work(ranks)))
        ranks.close()

    processes = [context.Process(target=child, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    while len(found) < size:
        if not answers.empty():
            found |= [answers.get()]
        assert all(p.exitcode in (None, 0) for p in processes), "a rank failed; its message is above"
        time.sleep(0.01)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(size)]


def episodes(policy: Policy, groups: int = 3) -> list[Trajectory]:
    """Groups of four episodes of one to four turns, with the log-probabilities that the policy gives them, a little off."""
    rng = np.random.default_rng(0)
    replies = ["open(a)", "read()", "submit(73)", "list()", "close()", "open(b)"]
    found = []
    for i in range(4 * groups):
        t = Trajectory(f"t{i // 4}", i // 4, horizon=5, reward=float(i % 3 == 0))
        t.add_prompt(policy.chat.prompt_ids("", "start c"))
        for _ in range(1 + i % 4):
            reply = replies[rng.integers(len(replies))]
            ids = policy.chat.reply_ids(reply)
            t.add_sample(Sample(ids, [0.0] * len(ids), "stop", 0))
            t.add_prompt(policy.chat.observation_ids("nothing", stopped=True))
            t.turns.append(Turn(reply, "nothing", cut=False, malformed=False))
        with torch.no_grad():
            logp = policy.score(policy.batch([t]), 1.0)[0][0].tolist()
        at = iter(logp)
        t.logprobs = [next(at) + 0.3 * rng.standard_normal() if wrote else 0.0 for wrote in t.action_mask]
        found.append(t)
    return found


@pytest.mark.parametrize("changes", [{}, {"aggregation": "seq-mean", "tis_cap": 1.1, "kl_coef": 0.1}])
def test_an_update_is_the_same_on_any_number_of_ranks_however_it_is_split(trained: Policy, changes: Any) -> None:
    trajectories = episodes(trained)
    whole = dataclasses.replace(preset([]).loss_settings(), minibatches=2, max_grad_norm=0.5, **changes)

    def update(ranks: Ranks, settings: LossSettings = whole) -> tuple[dict[str, float], list[np.ndarray]]:
        policy = Policy(copy.deepcopy(trained.model), trained.tokenizer, trained.chat)
        full = copy.deepcopy(policy.model)
        ranks.shard(policy)
        optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.1)
        reference = trained if settings.kl_coef else None
        metrics = update_policy(policy, optimizer, trajectories, settings, seed=0, reference=reference, ranks=ranks)
        copy_weights(policy.model, full)
        return metrics, [p.detach().numpy() for p in full.parameters()]

    expected, weights = update(Ranks())
    assert expected["train/clip_fraction"] > 0
    assert expected["train/grad_norm"] > whole.max_grad_norm  # clipping did something
    before = [p.detach().numpy() for p in trained.model.parameters()]
    assert any(abs(a - b).max() > 1e-3 for a, b in zip(weights, before, strict=True))
    for size, tokens in ((1, 10_000), (2, 10_000), (2, 1), (4, 60)):
        settings = dataclasses.replace(whole, tokens_per_microbatch=tokens)
        for metrics, found in on_ranks(size, lambda ranks, s=settings: update(ranks, s)):
            assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
            for a, b in zip(found, weights, strict=True):
                np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5)


def test_a_run_is_the_same_on_two_and_four_ranks_and_each_had_the_same_k(
    quick: GRPOConfig, tmp_path: Path, trained: Policy
) -> None:
    """SGD's steps would show rounding as it is; AdamW's are near their full size also where a gradient is all rounding."""
    config = dataclasses.replace(quick, updates=3, learning_rate=1e-5, eval_tasks=4, checkpoint_every=3)

    def played(ranks: Ranks, name: str) -> list[dict[str, Any]]:
        own = dataclasses.replace(config, run_dir=tmp_path / name)
        if ranks.first:
            prepare(own)
        evaluations = train(own, tmp_path / name, Display(Console(quiet=True)), ranks=ranks)
        return [
            *read_metrics(tmp_path / name / "metrics.jsonl"),
            {"after": evaluations["after"]["sampled"]["mean_at_k"]},
        ]

    expected = played(Ranks(), "1")
    assert [row["horizon/k"] for row in expected[:3]] != [quick.k0] * 3
    for size in (2, 4):
        every = on_ranks(size, lambda ranks, n=str(size): played(ranks, n))
        for found in every[0], every[-1][3:]:
            for row, other in zip(found, expected[-len(found) :], strict=True):
                assert_close(row, other)
        # Every rank's episodes had the K of the one controller.
        assert all(row["horizon/k"] == row["horizon/k_mean"] for row in every[0][:3])
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "4" / "model")
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "1" / "model")
    for a, b in zip(saved.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


def test_a_checkpoint_of_two_ranks_is_the_same_on_one_and_on_four(trained: Policy, tmp_path: Path) -> None:
    trajectories = episodes(trained)
    settings = preset([]).loss_settings()

    def start(ranks: Ranks, scale: float) -> tuple[Policy, torch.optim.Optimizer]:
        policy = Policy(copy.deepcopy(trained.model), trained.tokenizer, trained.chat)
        for parameter in policy.model.parameters():
            parameter.data *= scale
        ranks.shard(policy)
        return policy, make_optimizer(policy.model, learning_rate=1e-3, betas=(0.9, 0.99), weight_decay=0.0)

    def state(policy: Policy, optimizer: torch.optim.Optimizer) -> list[np.ndarray]:
        """Every weight and every moment, whole."""
        kept = [
            optimizer.state[p][name] for p in policy.model.parameters() for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        return [whole(tensor).detach().numpy() for tensor in [*policy.model.parameters(), *kept]]

    def save(ranks: Ranks) -> list[np.ndarray]:
        policy, optimizer = start(ranks, 1.0)
        update_policy(policy, optimizer, trajectories, settings, seed=0, ranks=ranks)

        def write(folder: Path) -> None:
            save_training_state(folder, model=policy.model, optimizer=optimizer, extra={"next_update": 7}, ranks=ranks)

        for update in (6, 7):
            save_checkpoint(tmp_path, update, write=write, keep=1, ranks=ranks)
        return state(policy, optimizer)

    def load(ranks: Ranks) -> list[np.ndarray]:
        policy, optimizer = start(ranks, 0.5)
        extra = load_training_state(tmp_path / "update-000007", model=policy.model, optimizer=optimizer, ranks=ranks)
        assert extra == {"next_update": 7}
        return state(policy, optimizer)

    saved = on_ranks(2, save)[0]
    assert [path.name for path in tmp_path.iterdir()] == ["update-000007"]
    for size in (1, 4):
        for loaded in on_ranks(size, load):
            for a, b in zip(saved, loaded, strict=True):
                np.testing.assert_array_equal(a, b)


def assert_close(row: dict[str, Any], other: dict[str, Any]) -> None:
    """Two rows of metrics, but for the clock's, are the same within rounding that a few updates have amplified."""
    assert row.keys() == other.keys()
    for name, value in other.items():
        if not name.startswith("time/") and name != "train/logp_difference_max":
            assert row[name] == (value if value is None else pytest.approx(value, rel=5e-3, abs=1e-5)), name


def torchrun(ranks: int, *arguments: str) -> list[str]:
    """The command line of a run on several ranks."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "harness.grpo"]
    return [sys.executable, *launch, *arguments]


def test_a_killed_rank_stops_the_run_which_resumes_on_another_number_to_the_same_metrics(
    quick: GRPOConfig, tmp_path: Path, cache: Path, child_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.grpo.cache_dir", lambda: cache)
    config = dataclasses.replace(quick, updates=6, learning_rate=1e-5, eval_tasks=0)
    prepare(config)
    train(config, tmp_path / "run", Display(Console(quiet=True)))
    killed = dataclasses.replace(config, run_dir=tmp_path / "killed")
    prepare(killed)
    log = tmp_path / "killed" / "metrics.jsonl"
    environment = {**child_env, "EH_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        torchrun(2, "--resume", str(killed.run_dir)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not log.exists() or len(log.read_text().splitlines()) < 2:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    ranks = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/environ") if _rank(p, process.pid) == "1"]
    os.kill(ranks[0], signal.SIGKILL)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    assert process.wait() != 0
    assert re.search(r"SIGKILL|Signal 9", said)
    assert len(read_metrics(log)) < killed.updates

    subprocess.run(torchrun(1, "--resume", str(killed.run_dir)), env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = read_metrics(log)
    for row, other in zip(rows, read_metrics(tmp_path / "run" / "metrics.jsonl"), strict=True):
        assert_close(row, other)


def _rank(environ: Path, parent: int) -> str:
    """The rank of a child of `parent`, or nothing."""
    try:
        if int((environ.parent / "stat").read_text().rsplit(")", 1)[1].split()[1]) != parent:
            return ""
        found = dict(v.split("=", 1) for v in environ.read_text(errors="replace").split("\0") if "=" in v)
    except (OSError, ValueError):
        return ""
    return found.get("RANK", "")


def test_shares_are_whole_in_order_and_even() -> None:
    for size in (1, 2, 3, 8):
        parts = [Ranks(rank, size).share(range(13)) for rank in range(size)]
        assert [i for part in parts for i in part] == list(range(13))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_rank_has_a_micro_batch_in_every_round() -> None:
    parts, lengths = [[0], [1], [2], [3], [4]], [10, 500, 20, 400, 30]
    dealt = [deal(parts, lengths, rank, 2) for rank in range(2)]
    assert dealt == [[[1], [4], [0]], [[3], [2], []]]


def test_what_several_ranks_cannot_do_is_said() -> None:
    several = Ranks(0, 2, group=object())
    with pytest.raises(ConfigError, match="vllm-server"):
        check_ranks(several, sampler="vllm", lora_rank=0)
    with pytest.raises(ConfigError, match="lora-rank"):
        check_ranks(several, sampler="transformers", lora_rank=4)


def test_a_checkpoint_of_one_process_is_not_taken_for_one_of_ranks(tmp_path: Path, trained: Policy) -> None:
    optimizer = torch.optim.SGD(trained.model.parameters())
    with pytest.raises(StateError, match="without torchrun"):
        load_training_state(tmp_path, model=trained.model, optimizer=optimizer, ranks=Ranks(0, 1, group=object()))
    (tmp_path / "shards").mkdir()
    with pytest.raises(StateError, match="resume it with torchrun"):
        load_training_state(tmp_path, model=trained.model, optimizer=optimizer)
