"""One, two and four ranks (gloo, on the CPU) do the same updates; a dead one stops the run, any number resumes it."""

import copy
import dataclasses
import faulthandler
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from one_step import update
from quiet_run import untimed
from rich.console import Console
from transformers import AutoModelForCausalLM

from eh_gym.errors import StateError
from harness.grpo import main
from harness.machine.ranks import Ranks, join
from harness.model.lora import add_lora
from harness.model.policy import Policy
from harness.model.shards import whole
from harness.records.metrics import read_metrics
from harness.records.run_folder import checkpoints_in, prepare
from harness.rollout.rollout import rollout
from harness.sampling.make import make_sampler
from harness.settings.grpo import from_recipe
from harness.settings.optimizer import Optimizer
from harness.settings.section import changed
from harness.terminal.display import Display
from harness.terminal.interrupts import Stopped
from harness.training.checkpoint import load_training_state, save_checkpoint, write_training_state
from harness.training.loop import train_loop
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn
from harness.update.learner import Learner
from harness.update.optimizer import HostMoments, make_optimizer, parameters_of
from harness.update.try_update import try_update


def on_ranks(size, work, *, timeout_s=300, silent=None):
    """What `work` returns on each of `size` forked ranks; of a `silent` one nothing is waited for, and it is killed."""
    context = multiprocessing.get_context("fork")
    answers, ports = context.SimpleQueue(), context.SimpleQueue()

    def child(rank):
        # A rank that hangs says where, and ends before its test's time is over.
        faulthandler.dump_traceback_later(240, exit=True)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports.get(), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {**address, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        os.environ["TORCHELASTIC_RUN_ID"] = "test"
        torch.set_num_threads(1)
        ranks = join(device="cpu", timeout_s=timeout_s)
        answers.put((rank, work(ranks)))
        ranks.close()

    processes = [context.Process(target=child, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    # As under torchrun, the ranks meet at a store of their parent's. Its thread looks names up, so it starts last: a
    # rank forked meanwhile would wait for ever for the C library's lock.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _ in processes:
        ports.put(str(store.port))
    found = {}
    wanted = [rank for rank in range(size) if rank != silent]
    try:
        while len(found) < len(wanted):
            if not answers.empty():
                found |= [answers.get()]
            assert all(p.exitcode in (None, 0) for p in processes), "a rank failed; its message is above"
            time.sleep(0.01)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        if silent is not None:
            processes[silent].kill()
        for process in processes:
            process.join()
    return [found[rank] for rank in wanted]


def episodes(policy, groups=3):
    """Groups of four episodes of one to four turns, with the log-probabilities that the policy gives them, a little
    off."""
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


@dataclasses.dataclass(frozen=True)
class Way:
    """How one update is computed: settings of the loss, and of the model."""

    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    lora_rank: int = 0
    packing: bool = True
    checkpointing: bool = False


def one_update(trained, way, ranks, *, tokens=10_000, dtype=torch.float32):
    settings = {"minibatches": 2, "max_grad_norm": 0.5, "tokens_per_microbatch": tokens, **way.changes}
    trajectories = episodes(trained)
    start = dataclasses.replace(trained, model=copy.deepcopy(trained.model).to(dtype))
    if not way.packing:
        start.model.set_attn_implementation("sdpa")
    policy = ranks.hand_out(start if ranks.first else None)
    assert {p.device.type for p in policy.model.parameters()} == {"cpu" if ranks.first else "meta"}
    if way.checkpointing:
        policy.recompute(kept=2 * way.packing, stored=1)
    if way.lora_rank:
        add_lora(policy.model, way.lora_rank, seed=0)
        for name, parameter in policy.model.named_parameters():
            if ranks.first and "lora_B" in name:  # of zeros, the other matrix would have no gradient
                torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(0))
    copied = copy.deepcopy(policy.model)
    ranks.fill(copied, "cpu")
    reference = None
    if "kl_coef" in settings:
        reference = policy
        if not way.lora_rank:
            reference = dataclasses.replace(policy, model=copy.deepcopy(policy.model).requires_grad_(False))
            ranks.shard(reference, "cpu")
    ranks.shard(policy, "cpu")
    assert policy.model.get_input_embeddings().weight is policy.model.get_output_embeddings().weight  # tied as before
    if ranks.sharded:
        held = sum(p.to_local().numel() for p in policy.model.parameters())
        assert held < (0.05 + 1 / ranks.size) * policy.model.num_parameters()
    optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], lr=0.1)
    metrics = update(policy, optimizer, trajectories, reference=reference, ranks=ranks, **settings)
    ranks.copy_weights(policy.model, copied)
    return metrics, [p.detach().float().numpy() for p in copied.parameters()]


SPLITS = ((1, 10_000), (2, 1), (4, 60))


@pytest.mark.parametrize(
    ("way", "splits"),
    [
        (Way(), SPLITS),
        (Way({"aggregation": "seq-mean", "tis_cap": 1.1, "kl_coef": 0.1}), SPLITS[2:]),
        (Way(packing=False, checkpointing=True), SPLITS[1:2]),
        (Way(checkpointing=True), SPLITS[1:2]),
        (Way({"kl_coef": 0.1}, lora_rank=2), SPLITS[2:]),
    ],
    ids=["plain", "all terms", "padded, checkpointed", "checkpointed, attention kept", "LoRA"],
)
def test_an_update_is_the_same_on_any_number_of_ranks_however_it_is_split(trained, way, splits):
    expected, weights = one_update(trained, way, Ranks())
    assert expected["train/clip_fraction"] > 0
    assert expected["train/grad_norm"] > 0.5  # clipping did something
    if not way.lora_rank:
        before = [p.detach().numpy() for p in trained.model.parameters()]
        assert any(abs(a - b).max() > 1e-3 for a, b in zip(weights, before, strict=True))
    for size, tokens in splits:
        for metrics, found in on_ranks(size, lambda ranks, n=tokens: one_update(trained, way, ranks, tokens=n)):
            assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
            torch.testing.assert_close(found, weights, atol=2e-6, rtol=1e-5)


def test_in_bfloat16_ranks_compute_narrow_and_step_float32_weights(trained):
    """The shards are float32, so that the step, of 1e-3 and less of the weights, is off by the gradient's rounding."""
    rounded = dataclasses.replace(trained, model=copy.deepcopy(trained.model).bfloat16().float())
    before = torch.cat([p.detach().flatten() for p in rounded.model.parameters()])

    def step(ranks, dtype):
        policy = dataclasses.replace(rounded, model=copy.deepcopy(rounded.model).to(dtype))
        policy = ranks.hand_out(policy if ranks.first else None)
        ranks.shard(policy, "cpu")
        optimizer = torch.optim.SGD(policy.model.parameters(), lr=1e-3)
        update(policy, optimizer, episodes(trained), ranks=ranks, minibatches=2)
        return torch.cat([whole(p.detach()).flatten() for p in policy.model.parameters()]) - before

    wide = step(Ranks(), torch.float32)
    for narrow in on_ranks(2, lambda ranks: step(ranks, torch.bfloat16).numpy()):
        assert 1e-4 < (torch.from_numpy(narrow) - wide).norm() / wide.norm() < 0.1


def played(config, ranks=Ranks(), *, resume=False):  # noqa: B008
    if ranks.first and not resume:
        prepare(config)
    evaluations = train_loop(config, config.out, Display(Console(quiet=True)), resume=resume, ranks=ranks)
    ranks.wait()  # the last line is rank 0's
    after = evaluations["after"].get("sampled", {}).get("mean_at_k")
    return [*read_metrics(config.out / "metrics.jsonl"), {"after": after}]


@pytest.fixture
def slow(quick, own_cache):
    """A learning rate with which rounding stays rounding.

    AdamW's steps are near their full size also where a gradient is all rounding.
    """
    return changed(quick, learning_rate=1e-5, eval_tasks=0, keep_checkpoints=9)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.clone.clones.cache_dir", lambda: cache)
        few = {"updates": 3, "tasks_per_update": 4, "group_size": 4, "eval_tasks": 2, "min_successes": 2}
        few |= {"checkpoint_every": 1, "learning_rate": 1e-5, "out": tmp_path_factory.mktemp("alone") / "run"}
        few["warm_start.max_optimal_steps"] = 9  # the clone of other tests
        config = changed(from_recipe("quickstart"), **few)
        return config, played(config)


def test_a_run_is_the_same_on_four_ranks_and_each_had_the_same_k(alone, slow, tmp_path):
    one, expected = alone
    assert [row["horizon/k"] for row in expected[:-1]] != [10] * one.updates
    config = changed(one, out=tmp_path / "4")
    for found in on_ranks(4, lambda ranks: played(config, ranks)):
        assert_close(found, expected)
        # Every rank's episodes had the K of the one controller.
        assert all(row["horizon/k"] == row["horizon/k_mean"] for row in found[:-1])
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "4" / "model")
    plain = AutoModelForCausalLM.from_pretrained(one.out / "model")
    torch.testing.assert_close([*saved.parameters()], [*plain.parameters()], atol=1e-4, rtol=0)


def test_two_ranks_sample_while_they_train_and_resume(slow, tmp_path):
    config = changed(slow, updates=3, max_staleness=1, rollout="streaming")

    def twice(ranks):
        rows = played(config, ranks)
        if ranks.first:
            for update in (2, 3):
                (tmp_path / "run" / "checkpoints" / f"update-{update:06d}").rename(tmp_path / f"{update}")
        ranks.wait()
        return [rows, played(config, ranks, resume=True)]

    for rows, resumed in on_ranks(2, twice):
        assert rows[0]["rollout/policy_lag"] == 0
        assert all(0 <= row["rollout/policy_lag"] <= 1 for row in rows[1:-1])
        assert [row["rollout/episodes"] for row in resumed[:-1]] == [row["rollout/episodes"] for row in rows[:-1]]
        # Later ones depend on how far the sampler was when weights changed.
        assert untimed(resumed[:1]) == untimed(rows[:1])


@pytest.mark.parametrize("rank", [0, 4])
def test_two_ranks_sample_with_one_server_that_rank_0_sends_the_weights(slow, trained, tmp_path, stand_in_server, rank):
    if rank:
        pytest.importorskip("peft")
    config = changed(slow, updates=3, tasks_per_update=2, k0=6, lora_rank=rank)
    expected = played(changed(config, out=tmp_path / "alone"))
    server = stand_in_server.ModelStandIn(trained.model)
    served = changed(config, sampler="vllm-server", url=server.url, env_threads=2)

    def train_and_tell(ranks):
        where = []

        def spy(config, policy, **rest):
            where.append(policy.model.device.type)
            return make_sampler(config, policy, **rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("harness.training.build.make_sampler", spy)
            if ranks.first:
                (tmp_path / "run").mkdir()
            return played(served, ranks), where[0]

    found = on_ranks(2, train_and_tell)
    # rank 0's: at the start, and after each of the three updates
    assert [body["method"] for path, body in server.calls if path == "/collective_rpc"] == ["load_policy"] * 4
    assert [where for _, where in found] == ["cpu", "meta"]  # the other rank holds no copy
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    off = 1e-6 if rank else 0
    torch.testing.assert_close([*server.model.parameters()], [*saved.parameters()], atol=off, rtol=0)
    assert found[0][0][0]["train/grad_norm"] > 0
    for rows, _ in found:
        assert_close(rows, expected)
    server.close()


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_checkpoint_of_two_ranks_is_the_same_on_one_and_on_four(trained, tmp_path, lora_rank):
    trajectories = episodes(trained)

    def start(ranks, scale):
        policy = Policy(copy.deepcopy(trained.model), trained.tokenizer, trained.chat)
        if lora_rank:  # the frozen weights are not in a checkpoint
            add_lora(policy.model, lora_rank, seed=int(10 * scale))
        for parameter in policy.model.parameters():
            parameter.data *= scale if parameter.requires_grad else 1.0
        ranks.shard(policy, "cpu")
        return policy, make_optimizer(policy.model, Optimizer(learning_rate=1e-3))

    def state(policy, optimizer):
        moments = ("exp_avg", "exp_avg_sq", "step")
        kept = [optimizer.state[p][name] for p in parameters_of(optimizer) for name in moments]
        return [whole(tensor).detach().numpy() for tensor in [*policy.model.parameters(), *kept]]

    def save(ranks):
        policy, optimizer = start(ranks, 1.0)
        update(policy, optimizer, trajectories, ranks=ranks)

        def write(folder):
            write_training_state(folder, {"next_update": 7}, model=policy.model, optimizer=optimizer, ranks=ranks)

        for number in (6, 7):
            save_checkpoint(tmp_path, number, write=write, keep=1, ranks=ranks)
        return state(policy, optimizer)

    def load(ranks):
        policy, optimizer = start(ranks, 0.5)
        extra = load_training_state(tmp_path / "update-000007", model=policy.model, optimizer=optimizer, ranks=ranks)
        assert extra == {"next_update": 7}
        return state(policy, optimizer)

    saved = on_ranks(2, save)[0]
    assert [path.name for path in tmp_path.iterdir()] == ["update-000007"]
    for size in (0, 1, 4):  # 0: without torchrun
        for loaded in on_ranks(size, load) if size else [load(Ranks())]:
            torch.testing.assert_close(loaded, saved, atol=0, rtol=0)


def test_moments_in_host_memory_and_a_tried_update_change_no_update_and_no_checkpoint(trained, tmp_path):
    trajectories = episodes(trained)
    config = changed(from_recipe("quickstart"), max_context=200, tokens_per_microbatch=512, learning_rate=1e-3)

    def train_twice(ranks, host, resumed):
        policy = Policy(copy.deepcopy(trained.model), trained.tokenizer, trained.chat)
        ranks.shard(policy, "cpu")
        optimizer = make_optimizer(policy.model, Optimizer(learning_rate=1e-3))
        if resumed:
            load_training_state(tmp_path, model=policy.model, optimizer=optimizer, ranks=ranks)
        moments = HostMoments(optimizer) if host else None
        learner = Learner(policy, optimizer, None, config.loss, config.optimizer, 1.0, 10, 0, ranks, moments)
        for number in (1,) if resumed else (0, 1):
            if host:
                try_update(learner, config)
            learner.update(trajectories, number)
            if host and not number:
                write_training_state(tmp_path, {}, model=policy.model, optimizer=optimizer, ranks=ranks)
        return [whole(p).detach().numpy() for p in policy.model.parameters()]

    expected = on_ranks(2, lambda ranks: train_twice(ranks, False, False))[0]
    for host, resumed in ((True, False), (True, True), (False, True)):
        found = on_ranks(2, lambda ranks, how=(host, resumed): train_twice(ranks, *how))[0]
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("group", "said", "told"),
    [
        (object(), "[gloo] Connection closed by peer", StateError),
        (object(), "NCCL error in x.cpp:1, remote process exited or there was a network error", StateError),
        (object(), "backend='inductor' raised: closure of a generator", RuntimeError),
        (None, "[gloo] Connection closed by peer", RuntimeError),
    ],
)
def test_only_other_ranks_failures_are_called_theirs(group, said, told):
    with pytest.raises(told) as error, Ranks(0, 2, group=group).together():
        raise RuntimeError(said)
    assert type(error.value) is told


def assert_close(rows, others):
    """Rows of metrics, but for the clock's, are the same within rounding that a few updates have amplified."""
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            if not name.startswith(("time/", "train/logp_difference")):  # the second is rounding itself
                assert row[name] == (value if value is None else pytest.approx(value, rel=5e-3, abs=1e-5)), name


def test_ranks_stop_together_with_the_one_that_is_interrupted_and_save(slow):
    config = changed(slow, updates=3, checkpoint_every=10)

    def work(ranks):
        calls = []

        def plays(*arguments, **more):
            calls.append(ranks.rank)
            if calls == [1, 1]:
                signal.raise_signal(signal.SIGTERM)
            return rollout(*arguments, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("harness.rollout.rollout.rollout", plays)
            with pytest.raises(Stopped):
                played(config, ranks)
        return [path.name for path in checkpoints_in(config.out / "checkpoints")]

    assert on_ranks(2, work) == 2 * [["update-000000", "update-000001"]]


@pytest.mark.campaign
def test_a_killed_rank_stops_the_run_which_resumes_on_another_number_to_the_same_metrics(
    alone, slow, tmp_path, cache, child_env
):
    killed = changed(alone[0], out=tmp_path / "killed")
    prepare(killed)
    log = tmp_path / "killed" / "metrics.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*torchrun, str(Path(__file__).parents[1] / "held_run.py"), "--resume", str(killed.out)],
        env={**child_env, "EH_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    while not log.exists() or not log.read_text():
        assert process.poll() is None, "the run failed"
        time.sleep(0.01)
    [last] = [child for child in psutil.Process(process.pid).children() if child.environ().get("RANK") == "1"]
    last.kill()
    said = process.stdout.read().decode()
    assert process.wait() != 0
    assert re.search(r"SIGKILL|Signal 9", said)
    assert len(read_metrics(log)) < killed.updates
    (rows,) = on_ranks(1, lambda ranks: played(killed, ranks, resume=True))
    assert_close(rows, alone[1])


def test_a_rank_that_falls_silent_ends_the_others_with_a_sentence(slow, tmp_path, capfd):
    def work(ranks, out):
        if not ranks.first:
            os.kill(os.getpid(), signal.SIGSTOP)
        joined = []

        def joins(**settings):
            joined.append(settings)
            return ranks

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("harness.training.carry_out.join", joins)
            with pytest.raises(SystemExit) as end:
                main(f"--updates 2 --eval-tasks 0 --out {out} --rank-timeout-s 7 --device cpu".split())
        return end.value.code, joined

    for limit_s in (5, 60):  # in which they have to find each other first, on a machine that may be busy
        try:
            found = on_ranks(2, lambda ranks, k=limit_s: work(ranks, tmp_path / f"{k}"), timeout_s=limit_s, silent=1)
            break
        except AssertionError:
            if limit_s == 60:
                raise
    assert found == [(2, [{"device": "cpu", "timeout_s": 7.0}])]
    assert "another rank" in capfd.readouterr().out
