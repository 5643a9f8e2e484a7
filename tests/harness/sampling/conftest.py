"""Every sampler over one tiny model, made once: an engine takes seconds to start, a server half a minute."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec

import pytest
import torch
from small_model import STOP, VOCAB, new_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm.engine import VLLMSampler
from harness.sampling.vllm.server import VLLMServerSampler
from harness.sampling.vllm.settings import WORKER_EXTENSION


def new_tokenizer():
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"w{STOP}", pad_token="w0")


def need_vllm():
    if find_spec("vllm") is None:
        assert not os.environ.get("EH_REQUIRE_VLLM"), "vLLM is not installed, and EH_REQUIRE_VLLM is set"
        pytest.skip("vLLM is not installed: tox run -e vllm")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # vLLM reads it once
    core = importlib.import_module("vllm.v1.engine.core")
    # A run has one engine. This process has many, and an engine that is collected would end torch.distributed for all
    # of them.
    core.cleanup_dist_env_and_memory = lambda: None


@pytest.fixture
def real_vllm():
    need_vllm()


class Server:
    def __init__(self, folder, log):
        self._folder, self._log = folder, log
        # Bound and not listening, it keeps the port for the server, also while that is down, and from everybody else.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        self._port = self._kept.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self):
        flags = {
            "model": self._folder,
            "port": self._port,
            "hf-overrides": '{"head_dtype": "float32"}',
            "kv-cache-memory-bytes": 64 << 20,
            "worker-extension-cls": WORKER_EXTENSION,
        }
        # As `vllm serve` does; that command needs the name of the GPU package.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--enable-scale-out"]
        command += ["--no-enable-chunked-prefill"]  # docs/vllm.md says why
        command += ["--host", "127.0.0.1", "--dtype", "float32", "--block-size", "32", "--generation-config", "vllm"]
        command += ["--logprobs-mode", "processed_logprobs"]
        on = ("VLLM_SERVER_DEV_MODE", "TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE")
        settings = {**dict.fromkeys(on, "1"), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self._process = subprocess.Popen(
            [*command, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))],
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
        )

    def wait(self, timeout_s=600):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the server ended:\n{self._log.read_text()[-4000:]}"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.3)
        raise AssertionError(f"the server did not come up:\n{self._log.read_text()[-4000:]}")

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
        self._kept.close()

    def hold(self):
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Two servers, which hold other weights than any test's model until they are sent some."""
    need_vllm()
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    Qwen2ForCausalLM(new_model().config).save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)
    started = [Server(folder, folder / f"server-{i}.log") for i in range(2)]
    try:
        for server in started:
            server.wait()
        yield started
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="session")
def made(request):
    kinds = {}

    def make(kind):
        if kind not in kinds:
            model = new_model(tied="untied" not in kind)
            if "bfloat16" in kind:
                model.to(torch.bfloat16)
            if kind.startswith("transformers"):
                kinds[kind] = model, TransformersSampler(model, max_prefill_tokens=8 if "small" in kind else 16_384)
            elif kind.startswith("vllm-server"):
                kinds[kind] = model, VLLMServerSampler(model, [request.getfixturevalue("servers")[0].url])
            else:
                need_vllm()
                kinds[kind] = model, VLLMSampler(model)
        return kinds[kind]

    return make
