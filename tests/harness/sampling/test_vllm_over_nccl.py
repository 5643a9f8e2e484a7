"""The hand-over to vLLM on GPUs by vLLM's own code, without a GPU. Skipped where vLLM is not installed.

Its sender, its client and its receivers run as they are. CUDA's streams and NCCL's communicator are replaced: what is
broadcast goes through queues.
"""

import contextlib
import inspect
import json
import os
import queue
import re
import sys
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_model import new_model
from torch import Tensor

from harness.model.lora import add_lora, plain_parameters
from harness.sampling.vllm import http as vllm_http
from harness.sampling.vllm.transfer import NCCLSender


class Stream:
    def __init__(self, **_): ...

    def synchronize(self): ...

    def wait_event(self, event): ...

    def record(self, stream): ...


class Communicator:
    """NCCL's communicator: what rank 0 broadcasts goes into the queues of the others."""

    group = {}  # noqa: RUF012
    sent = []  # noqa: RUF012  # the bytes of each broadcast

    def __init__(self, where, device):
        self._queue = queue.Queue()
        assert where.rank not in self.group
        assert where.rank < where.world_size
        self.group[where.rank] = self

    def broadcast(self, tensor, src, stream=None):
        assert src == 0
        if self is not self.group[0]:
            tensor.copy_(self._queue.get(timeout=30))
            return
        self.sent.append(tensor.nbytes)
        for rank, other in self.group.items():
            if rank:
                other._queue.put(tensor.clone())

    def destroy(self):
        self.group.clear()


@pytest.fixture(params=["installed", "next"])
def sources(real_vllm, request, tmp_path, monkeypatch):
    """The folder of vLLM's modules: the installed ones, or those of vLLM 0.33's wheel, whose hand-over then runs."""
    import vllm.distributed

    if request.param == "installed":
        return Path(vllm.__file__).parent
    wheel = next(Path(os.environ.get("EH_VLLM_NEXT", "missing")).glob("vllm-0.33.*.whl"), None)
    if wheel is None:
        assert not os.environ.get("EH_REQUIRE_VLLM")
        pytest.skip("the folder EH_VLLM_NEXT has no wheel of vLLM 0.33: tox run -e vllm")
    parts = ("vllm/distributed/weight_transfer/", "vllm/engine/", "vllm/entrypoints/")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path, [n for n in packed.namelist() if n.startswith(parts)])
    for name in [n for n in sys.modules if n.startswith("vllm.distributed.weight_transfer")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(vllm.distributed, "weight_transfer", raising=False)
    path = [str(tmp_path / "vllm" / "distributed"), *vllm.distributed.__path__]
    monkeypatch.setattr(vllm.distributed, "__path__", path)
    return tmp_path / "vllm"


@pytest.fixture
def without_gpus(sources, monkeypatch):
    from vllm.distributed import utils
    from vllm.distributed.device_communicators import pynccl
    from vllm.model_executor.model_loader import reload

    rendezvous = SimpleNamespace(create=lambda **where: SimpleNamespace(**where))
    monkeypatch.setattr(utils, "StatelessProcessGroup", rendezvous)
    monkeypatch.setattr(pynccl, "PyNcclCommunicator", Communicator)
    monkeypatch.setattr(reload, "initialize_layerwise_reload", lambda model: model.updates.append({}))
    monkeypatch.setattr(reload, "finalize_layerwise_reload", lambda model, config: None)
    for module, name, found in (
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
    monkeypatch.setattr(Communicator, "group", {})
    monkeypatch.setattr(Communicator, "sent", [])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.updates = []

    def load_weights(self, weights):
        self.updates[-1] |= {name: tensor.clone() for name, tensor in weights}


class Server:
    """A server of some GPUs: a receiver of vLLM's for each of them. vLLM's client posts to it through JSON, as over
    HTTP."""

    def __init__(self, url, gpus):
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

        self.url, self.models = url, [Model() for _ in range(gpus)]
        self._workers = []
        for rank, model in enumerate(self.models):
            parallel = SimpleNamespace(data_parallel_index=0, world_size=gpus, rank=rank)
            config = SimpleNamespace(parallel_config=parallel, model_config=None)
            self._workers.append(NCCLWeightTransferEngine(None, config, torch.device("cpu"), model))

    def world_size(self):
        return len(self._workers)

    def post(self, path, body):
        sent = json.loads(json.dumps(body or {}))
        for worker in self._workers:
            if path == "init_weight_transfer_engine":
                worker.init_transfer_engine(worker.parse_init_info(sent["init_info"]))
            else:  # start_weight_update, update_weights, finish_weight_update
                getattr(worker, path)(*sent.values())


@pytest.mark.parametrize("adapters", [False, True])
def test_every_gpu_of_every_server_receives_the_policy_s_weights_in_every_update(without_gpus, adapters, monkeypatch):
    from vllm.distributed.weight_transfer import clients, nccl_engine

    small = partial(nccl_engine.NCCLTrainerInitInfo, packed_buffer_size_bytes=20_000)
    monkeypatch.setattr(nccl_engine, "NCCLTrainerInitInfo", small)
    model = new_model()
    if adapters:
        add_lora(model, 4, seed=0)
    servers = {url: Server(url, gpus) for url, gpus in (("http://a:1", 1), ("http://b:2", 2))}
    client = clients.HTTPVLLMWeightSyncClient
    monkeypatch.setattr(client, "_post", lambda self, path, json=None: servers[self.base_url].post(path, json))
    sender = NCCLSender(model, list(servers.values()), torch.device("cpu"))
    assert sorted(Communicator.group) == [0, 1, 2, 3]
    sent = []
    for _ in range(3):
        with torch.no_grad():  # an optimizer's step
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter) * 0.1
        sender.send()
        sent.append({name: tensor.clone() for name, tensor in plain_parameters(model)})
    for receiver in (model for server in servers.values() for model in server.models):
        for received, expected in zip(receiver.updates, sent, strict=True):
            assert received.keys() == expected.keys()
            assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())
    assert sum(Communicator.sent) == 3 * sum(tensor.nbytes for tensor in sent[0].values())
    assert len(Communicator.sent) > 3  # in parts, one after the other
    sender.close()
    assert not Communicator.group


def test_vllm_s_servers_have_the_routes_and_flags_that_are_used(sources):
    def text(start):
        path = sources / start
        return "\n".join(file.read_text() for file in (path.rglob("*.py") if path.is_dir() else [path]))

    routes = re.findall(r'"(?:GET|POST)", "(/[^"?]+)', inspect.getsource(vllm_http))
    assert len(routes) > 8
    entrypoints = text("entrypoints")
    assert [route for route in routes if f'"{route}"' not in entrypoints] == []
    guide = (Path(__file__).parents[3] / "docs" / "vllm.md").read_text().replace("\\\n", "")
    commands = "\n".join(re.findall(r"vllm serve .*|vllm\.entrypoints\.openai\.api_server .*", guide))
    flags = set(re.findall(r" --(?:no-)?([a-z-]+)", commands))
    assert len(flags) > 10
    defined = text("engine/arg_utils.py") + entrypoints
    assert [flag for flag in flags if not re.search(rf"^    {flag.replace('-', '_')}: ", defined, re.M)] == []
