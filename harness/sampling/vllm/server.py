"""Samples with vLLM servers, on other GPUs or machines than the trainer's.

docs/vllm.md has the command, and says how requests and weights reach the servers.
"""

import itertools
import logging
import queue
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from eh_gym.errors import SamplerError
from harness.sampling.vllm.http import ServerGone, ServerRefused, VLLMServer
from harness.sampling.vllm.settings import check_model, check_server, sampling_parameters
from harness.sampling.vllm.transfer import NCCLSender, weights_file
from harness.types.sampler import Sample, SampleRequest, check_request, checked_context, sample_of

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_STEP_S = 0.005  # how long a step waits for an answer
_MAX_THREADS = 2048  # the most requests that run at once; a thread is made when one is needed


@dataclass(eq=False)
class _Engine:
    """One server as the sampler sees it."""

    server: VLLMServer
    alive: bool = True
    cache_tokens: int = 0
    sessions: set[Hashable] = field(default_factory=set)


@dataclass
class _Sent:
    """A request in flight. If it is sent again, it gets a new name, so that a late answer to the old one is ignored."""

    request: SampleRequest
    number: int
    engine: _Engine


class VLLMServerSampler:
    """A `Sampler` over one or several vLLM servers.

    Args:
        model: The policy. Its weights are sent at the start and by `weights_changed`: over NCCL from a GPU, else
            through a file that the servers can read. Without `sends` it needs no weights.
        urls: The servers' addresses.
        max_context: The most tokens of an episode. The default, which is also the maximum, is what every server allows.
        device, sends, sharers, version: As in `make_sampler`. Processes that do not send wait for the one that does.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        urls: Sequence[str],
        *,
        max_context: int | None = None,
        device: str | None = None,
        sends: bool = True,
        sharers: int = 1,
        version: int = 0,
    ) -> None:
        check_model(model)
        self._model = model
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._device = torch.device(device) if device else model.device
        self._over_nccl = self._device.type == "cuda"
        self._urls, self._engines = ", ".join(urls), [_Engine(VLLMServer(url)) for url in urls]
        limits = []
        for engine in self._engines:
            limit, engine.cache_tokens = check_server(engine.server, over_nccl=self._over_nccl)
            limits.append(limit)
        self.max_context = checked_context(max_context, min(limits), "the servers' --max-model-len")
        self._sends, self._sharers = sends, sharers
        self._sender: NCCLSender | None = None
        self._version = version
        self._numbers = itertools.count()
        self._running: dict[str, _Sent] = {}
        self._names: dict[Hashable, str] = {}
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="vllm-request")
        self._answers: queue.SimpleQueue[tuple[str, Sample | Exception]] = queue.SimpleQueue()
        self._send_weights()

    def cache_of(self, session: Hashable) -> tuple[Hashable, int]:
        engine = self._engine_of(session)
        return engine.server.url, engine.cache_tokens // self._sharers

    @property
    def pending(self) -> int:
        return len(self._running)

    def submit(self, request: SampleRequest) -> None:
        check_request(request, vocab_size=self._vocab_size, max_context=self.max_context, running=self._names)
        self._send(request, next(self._numbers))

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        done: list[tuple[int, SampleRequest, Sample]] = []
        block = bool(self._running)
        while True:
            try:
                name, answer = self._answers.get(block=block and not done, timeout=_STEP_S)
            except queue.Empty:
                break
            state = self._running.get(name)
            if state is None:  # its session was ended, or it was sent to another server
                continue
            if isinstance(answer, ServerGone):
                self._drop_server(state.engine, answer)
            elif isinstance(answer, Exception):
                raise SamplerError(f"{state.engine.server.url} could not sample: {answer}") from answer
            else:
                del self._running[name], self._names[state.request.session]
                done.append((state.number, state.request, answer))
        return [(request, sample) for _, request, sample in sorted(done, key=lambda d: d[0])]

    def end_session(self, session: Hashable) -> None:
        name = self._names.pop(session, None)
        if name is not None:
            self._threads.submit(self._running.pop(name).engine.server.abort, name)
        for engine in self._engines:
            engine.sessions.discard(session)

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def weights_changed(self) -> int:
        self._version += 1
        self._send_weights()
        return self._version

    def close(self) -> None:
        for session in list(self._names):
            self.end_session(session)
        self._threads.shutdown(wait=True)

    def _send(self, request: SampleRequest, number: int) -> None:
        engine = self._engine_of(request.session)
        name = f"{id(self):x}-{next(self._numbers)}"
        self._running[name] = _Sent(request, number, engine)
        self._names[request.session] = name
        self._threads.submit(self._ask, engine.server, name, request)

    def _engine_of(self, session: Hashable) -> _Engine:
        engine = next((e for e in self._engines if session in e.sessions), None)
        if engine is None:
            alive = [e for e in self._engines if e.alive]
            if not alive:
                raise SamplerError(f"none of the servers {self._urls} is left; start them again and --resume the run")
            engine = min(alive, key=lambda e: len(e.sessions))
            engine.sessions.add(session)
        return engine

    def _ask(self, server: VLLMServer, name: str, request: SampleRequest) -> None:
        answer: Sample | Exception
        try:
            choice = server.generate(name, list(request.prompt_ids), sampling_parameters(request))
            if not all(span["version"].isdigit() for span in choice["weight_versions"]):
                raise ServerGone(f"{server.url} was started again and does not have the policy's weights")
            answer = _sample(request, choice)
        except (LookupError, TypeError, ValueError) as error:
            answer = SamplerError(
                f"its answer does not have the form of the version of vLLM that docs/vllm.md names ({error!r})"
            )
        except Exception as error:
            answer = error
        self._answers.put((name, answer))

    def _drop_server(self, engine: _Engine, why: Exception) -> None:
        _log.warning("lost a vLLM server; its %d episodes go to other servers: %s", len(engine.sessions), why)
        engine.alive = False
        engine.sessions.clear()
        for name, lost in [(n, r) for n, r in self._running.items() if r.engine is engine]:
            del self._running[name]
            self._send(lost.request, lost.number)

    def _send_weights(self) -> None:
        """Sends the weights, with their version, to the servers, which pause meanwhile. Gives up those that fail."""
        if not self._sends:
            for engine in self._engines:  # a server that came back has the weights; another one is lost again at once
                engine.alive = True
            return
        paused = self._each(self._engines, VLLMServer.pause)
        if self._over_nccl:
            versions = self._each(paused, VLLMServer.weight_version)
            # A server that was started again has left the group: it would refuse the weights while the others wait for
            # it.
            servers = tuple(engine.server for engine in versions)
            self._send_over_nccl(servers, regroup=not all(map(str.isdigit, versions.values())))
            ready: Iterable[_Engine] = versions
        else:
            with weights_file(self._model) as file:
                ready = self._each(paused, lambda server: server.load_weights(str(file)))
        ready = self._each(ready, lambda server: server.name_weights(str(self._version)))
        for engine in self._each(ready, VLLMServer.resume):
            engine.alive = True
        if not any(engine.alive for engine in self._engines):
            raise SamplerError(f"none of the servers {self._urls} received the weights")

    def _send_over_nccl(self, servers: tuple[VLLMServer, ...], *, regroup: bool) -> None:
        """Sends the weights to all servers at once, in a new group if the servers have changed, or `regroup`."""
        if not servers:
            return
        try:
            if regroup or self._sender is None or self._sender.servers != servers:
                if self._sender is not None:
                    self._sender.close()
                self._sender = NCCLSender(self._model, servers, self._device)
            self._sender.send()
        except (OSError, ServerRefused) as error:  # the others wait for it in the group, and the wait cannot be ended
            raise SamplerError(
                f"a server failed while it received the weights, and the others wait for it ({error}); start all "
                "servers again and --resume the run"
            ) from error

    def _each(self, engines: Iterable[_Engine], call: Callable[[VLLMServer], _T]) -> dict[_Engine, _T]:
        """Calls all servers at once and gives up those that fail. Returns the others with their answers."""
        answers = {}
        for engine, done in [(engine, self._threads.submit(call, engine.server)) for engine in engines]:
            try:
                answers[engine] = done.result()
            except (ServerGone, ServerRefused) as error:
                if engine.alive:
                    self._drop_server(engine, error)
        return answers


def _sample(request: SampleRequest, choice: dict[str, Any]) -> Sample:
    ids: list[int] = choice["token_ids"]
    if choice["finish_reason"] not in ("stop", "length") or not ids:
        raise SamplerError(f"vLLM ended a request with {choice['finish_reason']!r} after {len(ids)} tokens: {request}")
    logprobs = [float(token["logprob"]) for _, token in zip(ids, choice["logprobs"]["content"], strict=True)]
    versions = tuple((int(span["version"]), span["end"] - span["start"]) for span in choice["weight_versions"])
    return sample_of(request, ids, logprobs, versions)
