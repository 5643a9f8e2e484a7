"""Every sampler over one tiny model, made once: an engine takes seconds to start, a server half a minute."""

import importlib
import os
from importlib.util import find_spec

import pytest
import torch
from small_model import STOP, VOCAB, new_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM
from vllm_process import Server

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


@pytest.fixture
def pair(stand_in_server):
    servers = stand_in_server.StandIn(), stand_in_server.StandIn()
    yield servers
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Two servers, which hold other weights than any test's model until they are sent some."""
    need_vllm()
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    Qwen2ForCausalLM(new_model().config).save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)
    # docs/vllm.md says why without chunked prefill.
    words = "--enforce-eager --no-enable-chunked-prefill --dtype float32 --block-size 32"
    words += f" --kv-cache-memory-bytes {64 << 20} --worker-extension-cls {WORKER_EXTENSION}"
    on = ("TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE")
    settings = {**dict.fromkeys(on, "1"), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    started = [Server(folder, folder / f"server-{i}.log", *words.split(), **settings) for i in range(2)]
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
