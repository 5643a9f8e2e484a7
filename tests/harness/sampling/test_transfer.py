"""How weights reach vLLM: what is moved, in which order, and what vLLM's own source says about it."""

import contextlib
import dataclasses
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest
import torch
from small_model import new_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from eh_gym.errors import ConfigError
from harness.model import lora
from harness.model.lora import add_lora
from harness.sampling.vllm.engine import VLLMSampler
from harness.sampling.vllm.server import VLLMServerSampler
from harness.sampling.vllm.transfer import NCCLSender, PolicySource
from harness.sampling.weights import _on_host

META = torch.device("meta")  # stands in for the GPU


class Engine:
    """vLLM's sender: what it asks of its source and its client, in its order.

    test_vllm_over_nccl.py has the real one.
    """

    made = []  # noqa: RUF012

    def __init__(self, where, client, source):
        self.client, self.source, self.closed = client, source, False
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": where})
        self.made.append(self)

    @classmethod
    def trainer_init(cls, where, *, client, source):
        return cls(where, client, source)

    def send_weights(self):
        meta = self.source.metadata()
        self.client.start_weight_update()
        self.client.update_weights({"names": [m.name for m in meta]})
        for expected, (name, tensor) in zip(meta, self.source, strict=True):
            assert (name, tensor.dtype, tuple(tensor.shape)) == (expected.name, expected.dtype, expected.shape)
        self.client.finish_weight_update()

    def shutdown(self):
        self.closed = True


class Client:
    """vLLM's client of one server. Its `init` waits for the others, as NCCL does."""

    def __init__(self, url, timeout): ...

    def init_weight_transfer_engine(self, info):
        self.together.wait(timeout=30)
        self.calls.append(("init", info["rank_offset"], info["world_size"]))

    def start_weight_update(self):
        self.calls.append(("start",))

    def update_weights(self, info):
        self.together.wait(timeout=30)
        self.calls.append(("update", len(info["names"])))

    def finish_weight_update(self):
        self.calls.append(("finish",))


def replace_modules(monkeypatch, parts):
    """Replaces modules by what is given of each, and the packages above them by empty ones."""
    for name in sorted({"vllm", *parts, *(name.rpartition(".")[0] for name in parts)}):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(parts.get(name, {}))


def servers(*gpus):
    Client.together = threading.Barrier(len(gpus))
    return [SimpleNamespace(url="http://gpu:8000", world_size=lambda n=n: n) for n in gpus]


@pytest.fixture
def calls(monkeypatch):
    found = []
    parts = {
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer.clients": {"HTTPVLLMWeightSyncClient": Client},
        "vllm.distributed.weight_transfer.nccl_engine": {
            "NCCLTrainerInitInfo": lambda host, port, world_size, rank: world_size,
            "NCCLTrainerWeightTransferEngine": Engine,
        },
        "vllm.utils.network_utils": {"get_ip": lambda: "192.0.2.2", "get_open_port": lambda: 29500},
    }
    replace_modules(monkeypatch, parts)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.append(("synchronize", device)))
    monkeypatch.setattr(Engine, "made", [])
    monkeypatch.setattr(Client, "calls", found, raising=False)
    monkeypatch.setattr(Client, "together", threading.Barrier(1), raising=False)
    return found


def test_the_optimizer_s_step_is_waited_for(calls):
    sender = NCCLSender(new_model(), servers(2, 1), META)
    calls.clear()
    sender.send()
    assert [call[0] for call in calls] == ["synchronize", *["start"] * 2, *["update"] * 2, *["finish"] * 2]


def test_the_gpu_that_sends_is_the_named_one_or_the_present_one(calls, monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: calls.append(("set", gpu.index)))
    for device in ("cuda", "cuda:3"):
        NCCLSender(new_model(), servers(1), torch.device(device))
    assert [call for call in calls if call[0] == "set"] == [("set", 3)]


def test_adapters_are_merged_once_a_pass(monkeypatch):
    pytest.importorskip("peft")
    model, merged, delta = new_model(), [], lora._delta
    add_lora(model, 2, seed=0)
    monkeypatch.setattr(lora, "_delta", lambda *args: merged.append(1) or delta(*args))
    source = PolicySource(model, META)
    assert [m.name for m in source.metadata()] == [name for name, _ in new_model().named_parameters()]
    assert not merged
    assert [(name, tuple(p.shape)) for name, p in source] == [(m.name, m.shape) for m in source.metadata]
    assert len(merged) == 2 * 7  # two layers of seven matrices


def test_a_copy_for_an_engine_is_in_the_host_s_memory():
    with FakeTensorMode():
        model = nn.Module()
        model.head = model.embedding = nn.Parameter(torch.empty(4, 4, device="cuda"))
        model.register_buffer("frequencies", torch.empty(4, device="cuda"))
        copied = _on_host(model)
        assert {p.device.type for p in model.parameters()} == {"cuda"}
        assert {p.device.type for p in (*copied.parameters(), *copied.buffers())} == {"cpu"}
        assert copied.head is copied.embedding


@pytest.fixture
def started(monkeypatch):
    """vLLM's engine is replaced by one that does not start; what it was asked for."""
    seen = SimpleNamespace()

    names = ("model", "dtype", "max_model_len", "gpu_memory_utilization", "enable_sleep_mode")

    class EngineArgs(dataclasses.make_dataclass("EngineArgs", names)):
        def __init__(self, **options):
            seen.options = options

        def create_engine_config(self, _):
            return SimpleNamespace(device_config=SimpleNamespace(device=torch.device("cuda")))

    def engine(*, vllm_config, **_):
        seen.device = vllm_config.device_config.device
        raise seen.error

    parts = {
        "vllm": {"EngineArgs": EngineArgs},
        "vllm.usage.usage_lib": {"UsageContext": SimpleNamespace(LLM_CLASS=None)},
        "vllm.v1": {},
        "vllm.v1.engine.llm_engine": {"LLMEngine": engine},
        "vllm.v1.executor": {"Executor": SimpleNamespace(get_class=lambda _: None)},
    }
    replace_modules(monkeypatch, parts)
    return seen


@pytest.mark.parametrize(
    "error", [ValueError("Free memory is less\nthan desired"), torch.OutOfMemoryError("Free memory")]
)
def test_an_engine_is_on_the_policy_s_own_gpu_and_names_the_flag_to_lower_if_it_does_not_start(started, error):
    started.error = error
    with pytest.raises(ConfigError, match=r"Free memory.*--gpu-memory-util.*--offload-optimizer"):
        VLLMSampler(new_model(), device="cuda:1")
    assert started.device == torch.device("cuda:1")
    assert started.options["enable_sleep_mode"]


def test_the_thread_of_a_rollout_steps_the_engine_on_its_own_gpu(monkeypatch):
    present = [None]

    @contextlib.contextmanager
    def device(gpu):
        present.append(gpu)
        yield
        present.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    steps = []
    sampler = VLLMSampler.__new__(VLLMSampler)
    sampler._device, sampler._on_gpu, sampler._running = torch.device("cuda:1"), True, {"0": None}
    sampler._engine = SimpleNamespace(step=lambda: steps.append(present[-1]) or [])
    assert sampler.step() == []
    assert steps == [torch.device("cuda:1")]


def test_vllm_s_executor_reads_the_gpu_from_the_device(real_vllm):
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    stub = SimpleNamespace(vllm_config=SimpleNamespace(device_config=SimpleNamespace(device=torch.device("cuda:1"))))
    assert UniProcExecutor._distributed_args(stub)[2] == 1


def test_a_server_that_fails_inside_the_group_ends_the_run(calls, pair, monkeypatch):

    def refuse(_):
        raise OSError("500 Server Error")  # as requests, which vLLM's client uses

    sampler = VLLMServerSampler(new_model(), [server.url for server in pair])
    monkeypatch.setattr(sampler, "_over_nccl", True)
    monkeypatch.setattr("harness.sampling.vllm.http.VLLMServer.world_size", lambda _: 1)
    sampler.weights_changed()
    assert [server.version for server in pair] == ["1", "1"]
    pair[1].dead = True
    sampler.weights_changed()  # found at the pause: a new group without it
    assert [len(engine.client._clients) for engine in Engine.made] == [2, 1]
    pair[1].dead = False
    sampler.weights_changed()
    pair[1].forget()  # started again while nobody asked it: it has left the group
    sampler.weights_changed()
    assert [len(engine.client._clients) for engine in Engine.made] == [2, 1, 2, 2]
    sampler.weights_changed()
    assert len(Engine.made) == 4
    assert [server.version for server in pair] == ["5", "5"]
    monkeypatch.setattr(Client, "start_weight_update", refuse)
    with pytest.raises(Exception, match=r"start all servers.*--resume"):
        sampler.weights_changed()
