"""The hand-over to vLLM on GPUs, by the code of vLLM itself, without a GPU: tox run -e vllm-wheel

Its sender and its receiver run as they are in its wheel. CUDA's streams and NCCL's communicator are replaced: what is broadcast
goes through queues.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import logging
import os
import queue
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

from eh_gym.errors import ConfigError
from harness.policy.lora import add_lora, plain_parameters
from harness.quickstart.tiny import fresh_qwen2
from harness.sampling import vllm_http
from harness.sampling.transfer import NCCLSender
from harness.sampling.vllm import VLLMSampler

WHEELS = sorted(Path(os.environ.get("EH_VLLM_WHEELS", "/nowhere")).glob("vllm-*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason="there is no wheel of vLLM: tox run -e vllm-wheel")


class Stream:
    """A stream of CUDA, on a CPU: everything is done at once."""

    def __init__(self, **_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record(self, stream: Stream) -> None: ...


class Communicator:
    """NCCL's communicator: what rank 0 broadcasts goes into the queues of the others."""

    groups: dict[int, dict[int, Communicator]] = {}  # noqa: RUF012
    sent: list[int] = []  # noqa: RUF012  # the bytes of each broadcast

    def __init__(self, where: SimpleNamespace, device: Any) -> None:
        self._queue: queue.Queue[Tensor] = queue.Queue()
        self._group = self.groups.setdefault(where.port, {})
        assert where.rank not in self._group
        assert where.rank < where.world_size
        self._group[where.rank] = self
        self._sends = where.rank == 0

    def broadcast(self, tensor: Tensor, src: int, stream: Any = None) -> None:
        assert src == 0
        if self._sends:
            self.sent.append(tensor.nbytes)
            for rank, other in self._group.items():
                if rank:
                    other._queue.put(tensor.clone())
        else:
            tensor.copy_(self._queue.get(timeout=30))

    def destroy(self) -> None:
        self._group.clear()


def forget_vllm() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def stand_in(name: str, **content: Any) -> None:
    """Makes `name` a module that has nothing but `content`."""
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)


@pytest.fixture(params=WHEELS, ids=lambda wheel: wheel.name.split("-")[1])
def wheel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A wheel that vLLM's weight transfer can be imported from, without CUDA, and without the packages that vLLM needs."""
    path: Path = request.param
    forget_vllm()
    real = "vllm.distributed.weight_transfer", "vllm.model_executor.model_loader"
    for name in sorted({".".join(name.split(".")[:depth]) for name in real for depth in (1, 2, 3)}):
        stand_in(name, __path__=[str(path / name.replace(".", "/"))])  # its `__init__` would import most of vLLM
    vars(sys.modules["vllm"])["__version__"] = path.name.split("-")[1]
    monkeypatch.setitem(sys.modules, "pybase64", ModuleType("pybase64"))
    stand_in("vllm.config")
    stand_in("vllm.config.parallel", ParallelConfig=object)
    stand_in("vllm.config.weight_transfer", WeightTransferConfig=object)
    stand_in("vllm.distributed.device_communicators")
    stand_in("vllm.distributed.device_communicators.pynccl", PyNcclCommunicator=Communicator)
    stand_in("vllm.distributed.device_communicators.pynccl_wrapper", NCCL_UNIQUE_ID_BYTES=128)
    rendezvous = SimpleNamespace(create=lambda **where: SimpleNamespace(**where))
    stand_in("vllm.distributed.utils", StatelessProcessGroup=rendezvous)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.lora")
    stand_in("vllm.lora.request", LoRARequest=SimpleNamespace)
    stand_in(
        "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=lambda model: model.updates.append({}),
        finalize_layerwise_reload=lambda model, config: None,
    )
    stand_in("vllm.utils")
    stand_in("vllm.utils.nccl", unpinned_nccl_env=contextlib.nullcontext)
    stand_in("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", get_open_port=lambda: 29500)
    for module, name, found in (
        (torch.cuda, "set_device", None),
        (torch.cuda, "synchronize", None),
        (torch.cuda, "current_stream", Stream()),
        (torch.accelerator, "synchronize", None),
        (torch.accelerator, "current_stream", Stream()),
        (torch.accelerator, "current_device_index", 0),
        (Tensor, "record_stream", None),
    ):
        monkeypatch.setattr(module, name, lambda *_, found=found: found)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch, "Event", Stream)
    monkeypatch.setattr(Communicator, "groups", {})
    monkeypatch.setattr(Communicator, "sent", [])
    yield path
    forget_vllm()


class Model(torch.nn.Module):
    """vLLM's model: what it was given in each update."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[dict[str, Tensor]] = []

    def load_weights(self, weights: Any) -> None:
        self.updates[-1] |= {name: tensor.clone() for name, tensor in weights}


def settings(rank: int, gpus: int) -> SimpleNamespace:
    """vLLM's configuration of one worker."""
    parallel = SimpleNamespace(data_parallel_index=0, world_size=gpus, rank=rank)
    return SimpleNamespace(parallel_config=parallel, model_config=None)


class Server:
    """A server of some GPUs: a receiver of vLLM's for each of them. vLLM's client posts to it through JSON, as over HTTP."""

    def __init__(self, url: str, gpus: int) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

        self.url, self.models, cpu = url, [Model() for _ in range(gpus)], torch.device("cpu")
        self._workers = [
            NCCLWeightTransferEngine(None, settings(rank, gpus), cpu, model) for rank, model in enumerate(self.models)
        ]

    def world_size(self) -> int:
        return len(self._workers)

    def post(self, path: str, body: dict[str, Any] | None) -> None:
        sent = json.loads(json.dumps(body or {}))
        for worker in self._workers:
            if path == "init_weight_transfer_engine":
                worker.init_transfer_engine(worker.parse_init_info(sent["init_info"]))
            else:  # start_weight_update, update_weights, finish_weight_update
                getattr(worker, path)(*sent.values())


def policy(*, adapters: bool = False) -> Qwen2ForCausalLM:
    model = fresh_qwen2(50, 64, 64, 2, 2, 1, tied=False, positions=128, eos_id=7, initializer_range=0.3)
    if adapters:
        add_lora(model, 4, seed=0)
        change(model)
    return model


def assert_same(received: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name], tensor), name


def change(model: Qwen2ForCausalLM) -> None:
    """An optimizer's step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1


@pytest.mark.parametrize("adapters", [False, True])
def test_every_gpu_of_every_server_receives_the_policy_s_weights_in_every_update(
    wheel: Path, adapters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.weight_transfer import clients, nccl_engine

    small = partial(nccl_engine.NCCLTrainerInitInfo, packed_buffer_size_bytes=20_000)
    monkeypatch.setattr(nccl_engine, "NCCLTrainerInitInfo", small)
    model = policy(adapters=adapters)
    servers: dict[str, Any] = {url: Server(url, gpus) for url, gpus in (("http://a:1", 1), ("http://b:2", 2))}
    client = clients.HTTPVLLMWeightSyncClient
    monkeypatch.setattr(client, "_post", lambda self, path, json=None: servers[self.base_url].post(path, json))
    sender = NCCLSender(model, list(servers.values()), torch.device("cpu"))
    assert [sorted(group) for group in Communicator.groups.values()] == [[0, 1, 2, 3]]
    sent = []
    for _ in range(3):
        sender.send()
        sent.append({name: tensor.clone() for name, tensor in plain_parameters(model)})
        change(model)
    for receiver in (model for server in servers.values() for model in server.models):
        for update, expected in zip(receiver.updates, sent, strict=True):
            assert_same(update, expected)
    assert sum(Communicator.sent) == 3 * sum(tensor.nbytes for tensor in sent[0].values())
    assert len(Communicator.sent) > 3  # in parts, one after the other
    sender.close()
    assert not any(Communicator.groups.values())


def test_vllm_packs_on_streams_that_do_not_wait_for_the_optimizer(wheel: Path) -> None:
    """The reason for the synchronisation in `NCCLSender.send`. If vLLM waits itself, it can go."""
    from vllm.distributed.weight_transfer import packed_tensor

    source = inspect.getsource(packed_tensor.packed_nccl_broadcast_producer)
    assert "torch.cuda.stream(streams" in source
    assert "wait_stream" not in source
    assert "wait_event" not in source


def text(wheel: Path, start: str) -> str:
    """The source of the modules whose path begins so."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"vllm/{start}") and name.endswith(".py")]
        assert names, f"no vllm/{start} in {wheel}"
        return "\n".join(archive.read(name).decode() for name in names)


def test_vllm_s_servers_have_the_routes_and_flags_that_are_used(wheel: Path) -> None:
    routes = re.findall(r'"(?:GET|POST)", "(/[^"]+)"', inspect.getsource(vllm_http))
    assert len(routes) > 8
    entrypoints = text(wheel, "entrypoints/")
    assert [route for route in routes if f'"{route}"' not in entrypoints] == []
    guide = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text().replace("\\\n", "")
    commands = "\n".join(re.findall(r"vllm serve .*|vllm\.entrypoints\.openai\.api_server .*", guide))
    flags = set(re.findall(r" --(?:no-)?([a-z-]+)", commands))
    assert len(flags) > 10
    defined = text(wheel, "engine/arg_utils.py") + entrypoints
    assert [flag for flag in flags if not re.search(rf"^    {flag.replace('-', '_')}: ", defined, re.M)] == []
    network = text(wheel, "utils/network_utils.py")
    assert all(f"def {name}(" in network for name in ("get_ip", "get_open_port"))


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_vllm_s_engine_has_the_arguments_that_it_gets(wheel: Path, on: str) -> None:
    asked: dict[str, Any] = {}

    class EngineArgs:
        def __init__(self, **options: Any) -> None:
            asked.update(options)

        def create_engine_config(self, _: Any) -> None:
            raise ValueError("that is all")

    stand_in("vllm", EngineArgs=EngineArgs)
    stand_in("vllm.usage")
    stand_in("vllm.usage.usage_lib", UsageContext=SimpleNamespace(LLM_CLASS=None))
    stand_in("vllm.v1")
    stand_in("vllm.v1.engine")
    stand_in("vllm.v1.engine.llm_engine", LLMEngine=None)
    stand_in("vllm.v1.executor", Executor=None)
    with pytest.raises(ConfigError, match="that is all"):
        VLLMSampler(policy(adapters=True), slots=8, device=on)
    parsed = ast.parse(text(wheel, "engine/arg_utils.py"))
    (found,) = (node for node in parsed.body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs")
    assert asked.keys() <= {node.target.id for node in found.body if isinstance(node, ast.AnnAssign)}  # type: ignore[attr-defined]
