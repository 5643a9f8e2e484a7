"""Short runs of the tiny model on every path of the harness."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from gpus import assert_sound, train

from harness.machine.runtime import visible_gpus
from harness.sampling.vllm.settings import FLOAT32_LOGITS, WORKER_EXTENSION

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
    with server(tmp_path / "other" / "model", over_nccl) as url:
        device = "cuda" if over_nccl else "cpu"
        assert_sound(train(tmp_path / "run", "--sampler", "vllm-server", "--url", url, device=device))


@contextlib.contextmanager
def server(model, over_nccl):
    with socket.socket() as kept:  # bound and not listening, it keeps the port for the server
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{kept.getsockname()[1]}"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--gpu-memory-utilization", "0.3"]
        command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"]
        command += ["--hf-overrides", json.dumps(FLOAT32_LOGITS)]
        if over_nccl:
            command += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
        else:
            command += ["--worker-extension-cls", WORKER_EXTENSION]
        settings = {"VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": visible_gpus()[-1]}
        process = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            while True:  # the test's own time limit ends it
                assert process.poll() is None, "the server ended; its output is captured"
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            process.wait(30)
