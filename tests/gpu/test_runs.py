"""Short runs of the tiny model on every path of the harness."""

import json
import shutil

import pytest
import torch
from gpus import assert_sound, train
from vllm_process import Server

from harness.machine.runtime import visible_gpus
from harness.sampling.vllm.settings import WORKER_EXTENSION

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("a_gpu")]


# The learning rate moves adapters enough for a lost hand-over to be seen: with a tenth of it, they change the mean by
# 0.007 nats.
@pytest.mark.parametrize("lora", [(), ("--lora-rank", "4", "--learning-rate", "0.03")], ids=["all weights", "adapters"])
@pytest.mark.parametrize("sampler", ["transformers", "vllm"])
def test_the_sampler_and_the_trainer_agree(tmp_path, sampler, lora):
    if sampler == "vllm":
        pytest.importorskip("vllm")
    assert_sound(train(tmp_path / "run", "--sampler", sampler, *lora))


def test_sampling_while_training(tmp_path):
    assert_sound(train(tmp_path / "run", "--max-staleness", "1", "--rollout", "streaming"), lag=1)


def test_a_resumed_run_repeats_the_last_update(tmp_path):
    run = tmp_path / "run"
    whole = train(run, "--checkpoint-every", "1")
    shutil.rmtree(run / "checkpoints" / "update-000002")
    again = train(run, "--resume", str(run))
    for row, other in zip(whole, again, strict=True):
        names = {name for name in row.keys() | other.keys() if not name.startswith("time/")}
        # On a GPU sums are added in an order that changes from run to run.
        assert {n: other.get(n) for n in names} == pytest.approx({n: row.get(n) for n in names}, rel=0.05)


@pytest.mark.parametrize("sampler", ["transformers", "vllm"])
def test_two_ranks_compute_the_first_update_of_one(tmp_path, sampler):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    if sampler == "vllm":
        pytest.importorskip("vllm")
    one, two = (train(tmp_path / str(n), "--sampler", sampler, ranks=n) for n in (1, 2))
    assert_sound(two)
    if sampler == "transformers":  # else other tokens may be drawn
        assert two[0]["train/grad_norm"] == pytest.approx(one[0]["train/grad_norm"], rel=0.05)


def test_a_server_takes_the_weights(tmp_path):
    pytest.importorskip("vllm")
    over_nccl = torch.cuda.device_count() > 1
    train(tmp_path / "other")  # the server begins with other weights
    words = ["--gpu-memory-utilization", "0.3"]
    if over_nccl:
        words += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    else:
        words += ["--worker-extension-cls", WORKER_EXTENSION]
    gpu = {"CUDA_VISIBLE_DEVICES": visible_gpus()[-1]}
    server = Server(tmp_path / "other" / "model", tmp_path / "server.log", *words, **gpu)
    try:
        server.wait()
        flags = ["--sampler", "vllm-server", "--url", server.url]
        assert_sound(train(tmp_path / "run", *flags, device="cuda" if over_nccl else "cpu"))
    finally:
        server.stop()
