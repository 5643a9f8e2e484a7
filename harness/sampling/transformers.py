"""Samples with the same module that is trained, through transformers. It works on any device and needs no engine.

The key-value cache is kept over the turns of an episode. A common beginning of several episodes, such as the prompt of
a group, is computed once.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError
from harness.model.attention import attention_windows
from harness.model.batch import padded_microbatches
from harness.model.head import float32_head, float32_logits
from harness.sampling.slot_cache import SlotCache
from harness.types.sampler import Sample, SampleRequest, check_request, checked_context, sample_of, spans
from harness.types.seeding import uniforms

# Fewer common tokens are not shared: the extra forward pass would cost more than it saves.
_LEAST_SHARED = 32

# All but cuDNN's, which torch 2.11 takes in bfloat16 on Hopper. It makes a plan for each new shape, and every step has
# a new one: 57 ms and more on an H200, where the attention itself takes 1 ms (benchmarks/results/gpu-h200.txt).
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.OVERRIDEABLE]


@dataclass
class _Session:
    """An episode: its row of the cache, and the tokens whose keys and values are stored there."""

    row: int
    cached: list[int] = field(default_factory=list)


@dataclass
class _Feeding:
    """A request in flight: the tokens that must still be fed to the model, and what was sampled so far."""

    request: SampleRequest
    session: _Session
    feed: list[int]
    uniforms: np.ndarray
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class TransformersSampler:
    """A `Sampler` over a decoder-only transformers model whose layers attend to all tokens or to a sliding window.

    Args:
        model: The policy. It is used without gradients and left in eval mode. Only the weights of a narrow output layer
            on a CPU are copied.
        max_context: The most tokens of an episode. The default, which is also the maximum, is the model's
            ``max_position_embeddings``.
        max_prefill_tokens: The most padded tokens of one forward pass over new prompts. It bounds the memory.
        version: The number of policy updates that the weights have seen; `weights_changed` counts on from it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_context: int | None = None,
        max_prefill_tokens: int = 16_384,
        version: int = 0,
    ) -> None:
        config = model.config.get_text_config()
        windows = attention_windows(config)
        if windows is None or model._is_stateful:
            kinds = sorted(set(getattr(config, "layer_types", None) or [])) or ["recurrent layers"]
            raise ConfigError(
                f"TransformersSampler needs layers with full or sliding attention, got {kinds} in "
                f"{config.model_type!r}; use --sampler vllm, or another model"
            )
        self.max_context = checked_context(max_context, config.max_position_embeddings)
        self._model = model
        self._windows = set(windows)
        self._vocab_size = int(config.vocab_size)
        self._max_prefill_tokens = max_prefill_tokens
        self._version = version
        self._cache = SlotCache(self.max_context)
        self._head: Tensor | None = None  # of the present weights; None until it is needed
        self._sessions: dict[Hashable, _Session] = {}
        self._rows: list[_Session] = []  # by row
        self._running: dict[Hashable, _Feeding] = {}

    @property
    def pending(self) -> int:
        return len(self._running)

    @torch.inference_mode()
    def submit(self, request: SampleRequest) -> None:
        check_request(request, vocab_size=self._vocab_size, max_context=self.max_context, running=self._running)
        session = self._sessions.get(request.session)
        if session is None:
            session = self._sessions[request.session] = _Session(row=len(self._rows))
            self._rows.append(session)
        prompt = list(request.prompt_ids)
        # The last token is always fed again: the first sampled token is drawn from its logits.
        kept = _common_prefix(session.cached, prompt[:-1])
        del session.cached[kept:]
        self._cache.reserve(len(self._sessions), len(prompt) + request.max_tokens)
        draws = uniforms(request.seed, request.max_tokens) if request.temperature > 0 else np.empty(0)
        self._running[request.session] = _Feeding(request, session, prompt[kept:], draws)

    @torch.inference_mode()
    def step(self) -> list[tuple[SampleRequest, Sample]]:
        """Feeds new prompts, or else one token of every running request. Returns the finished requests.

        If a prompt was copied from another row, one token is left to feed. Its request then draws with the running
        ones.
        """
        if not self._running:
            return []
        if self._model.training:  # never switched back here, because that visits all modules; the trainer does it
            self._model.eval()
        running = list(self._running.values())
        new = [r for r in running if len(r.feed) > 1]
        self._move_forward(new or running)
        if new:
            self._prefill(new)
        else:
            self._forward(running)
        return [(r.request, self._finish(r)) for r in running if _is_finished(r)]

    @torch.inference_mode()
    def end_session(self, session: Hashable) -> None:
        """Forgets an episode. The last row takes its place, so that the rows in use stay adjacent."""
        gone = self._sessions.pop(session, None)
        if gone is None:
            return
        self._running.pop(session, None)
        gone.cached.clear()
        self._swap(gone.row, len(self._rows) - 1)
        self._rows.pop()

    def sleep(self) -> None:
        assert not self._running, "requests are pending"
        self._cache.release()
        self._head = None
        for session in self._sessions.values():
            session.cached.clear()

    def wake(self) -> None: ...

    def weights_changed(self) -> int:
        self._head = None
        for session in self._sessions.values():
            session.cached.clear()
        for running in self._running.values():
            running.feed = list(running.request.prompt_ids) + running.ids
        self._version += 1
        return self._version

    def close(self) -> None: ...

    def _move_forward(self, batch: list[_Feeding]) -> None:
        """Moves the sessions of a batch into the first rows, so that a forward pass over them copies no cache."""
        late = [r.session for r in batch if r.session.row >= len(batch)]
        if late:
            free = {*range(len(batch))} - {r.session.row for r in batch}
            for session, row in zip(late, sorted(free), strict=True):
                self._swap(session.row, row)

    def _swap(self, row: int, other: int) -> None:
        if row == other:
            return
        a, b = self._rows[row], self._rows[other]
        self._cache.swap_rows(row, other, max(len(a.cached), len(b.cached)))
        self._rows[row], self._rows[other] = b, a
        a.row, b.row = other, row

    def _finish(self, state: _Feeding) -> Sample:
        del self._running[state.request.session]
        return sample_of(state.request, state.ids, state.logprobs, spans(state.versions))

    def _prefill(self, new: list[_Feeding]) -> None:
        """Computes prompts. A common beginning is computed for the first of them and then copied."""
        while new:
            for r in new:
                self._take_over(r)
            first: list[_Feeding] = []
            begun: list[list[int]] = []  # the tokens of each of `first`
            later: list[_Feeding] = []
            for r in new:
                if len(r.feed) > _LEAST_SHARED and any(_shared_tokens(r, tokens) for tokens in begun):
                    later.append(r)
                elif len(r.feed) > 1:
                    first.append(r)
                    begun.append(r.session.cached + r.feed)
            for batch in padded_microbatches([len(r.feed) for r in first], self._max_prefill_tokens):
                self._forward([first[i] for i in batch])
            new = later

    def _take_over(self, state: _Feeding) -> None:
        """Copies the keys and values of the longest beginning that another episode has."""
        if len(state.feed) <= _LEAST_SHARED:
            return
        session = state.session
        shared, donor = max(((_shared_tokens(state, s.cached), s.row) for s in self._rows), default=(0, 0))
        if shared:
            start = len(session.cached)
            self._cache.copy_row(donor, session.row, start, start + shared)
            session.cached += state.feed[:shared]
            del state.feed[:shared]

    def _forward(self, batch: list[_Feeding]) -> None:
        batch = sorted(batch, key=lambda r: r.session.row)
        n, q = len(batch), max(len(r.feed) for r in batch)
        ids = np.zeros((n, q), dtype=np.int64)
        position = np.full((n, q), -1, dtype=np.int64)
        for i, r in enumerate(batch):  # padded on the left: the last column is every row's last token
            m = len(r.feed)
            start = len(r.session.cached)
            ids[i, q - m :] = r.feed
            position[i, q - m :] = np.arange(start, start + m)
            r.session.cached += r.feed
        width = int(position.max()) + 1
        first = batch[0].session.row
        rows = [r.session.row for r in batch]
        device = self._model.device
        positions = torch.from_numpy(position).to(device)
        together = rows == list(range(first, first + n))
        index = slice(first, first + n) if together else torch.tensor(rows, device=device)
        if q == 1:  # no row has padding
            self._cache.place(index, positions, width)
        else:
            self._cache.place(index, positions.where(positions >= 0, self._cache.scrap_column), width)
            positions = positions.clamp_min(0)
        # Prompts of one length with nothing cached need no mask, which halves the attention. Short ones gain nothing.
        plain = q > _LEAST_SHARED and width == q == min(len(r.feed) for r in batch) and self._windows == {None}
        if self._head is None:
            self._head = float32_head(self._model)
        with float32_logits(self._model, self._head), sdpa_kernel(_KERNELS):
            output = self._model(
                input_ids=torch.from_numpy(ids).to(device),
                attention_mask=None if plain else self._masks(positions, width),
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                past_key_values=self._cache,
            )
        self._draw(batch, output.logits[:, -1])

    def _masks(self, positions: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """Which tokens each token sees, [n, 1, q, width]; one mask per kind of layer if the model has two.

        The masks of transformers assume that all rows begin at the same column. A mask of four dimensions is used as it
        is, so it must have the window already. Eager attention adds the mask, so there it holds numbers.
        """
        columns = torch.arange(width, device=positions.device)
        last = positions[:, None, :, None]
        masks = {}
        for window in self._windows:
            seen = columns <= last if window is None else (columns <= last) & (columns > last - window)
            if self._model.config._attn_implementation == "eager":
                least = torch.finfo(self._model.dtype).min
                seen = torch.zeros(seen.shape, dtype=self._model.dtype, device=seen.device).masked_fill_(~seen, least)
            masks["full_attention" if window is None else "sliding_attention"] = seen
        return masks if len(masks) > 1 else seen

    def _draw(self, batch: list[_Feeding], logits: Tensor) -> None:
        """Draws one token per row: it inverts the cumulative distribution at the request's own uniform number."""
        if logits.device.type == "mps":  # mps has no float64
            logits = logits.cpu()
        temperatures = [r.request.temperature for r in batch]
        logits = logits.float()
        if any(t != 1.0 for t in temperatures):
            logits = logits / torch.tensor([t or 1.0 for t in temperatures], device=logits.device)[:, None]
        logp = torch.log_softmax(logits, dim=-1)
        u = np.array([r.uniforms[len(r.ids)] if t else 0.0 for t, r in zip(temperatures, batch, strict=True)])
        # In float64: over 150,000 tokens, the error of a float32 sum exceeds the probability of most tokens.
        cdf = logp.double().exp().cumsum(-1)
        at = torch.from_numpy(u).to(logits.device)[:, None] * cdf[:, -1:]
        token = torch.searchsorted(cdf, at, right=True).clamp_max(cdf.shape[-1] - 1)
        if not all(temperatures):
            greedy = torch.tensor([not t for t in temperatures], device=logits.device)
            token = torch.where(greedy[:, None], logp.argmax(-1, True), token)
        chosen = logp.gather(1, token).squeeze(1).tolist()
        for r, t, lp in zip(batch, token.squeeze(1).tolist(), chosen, strict=True):
            r.ids.append(t)
            r.logprobs.append(lp)
            r.versions.append(self._version)
            r.feed = [t]


def _is_finished(state: _Feeding) -> bool:
    return bool(state.ids) and (state.ids[-1] in state.request.stop_ids or len(state.ids) >= state.request.max_tokens)


def _common_prefix(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # nearly always: a conversation only grows
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _shared_tokens(state: _Feeding, tokens: list[int]) -> int:
    """How many of the tokens to feed are also in `tokens`, after the same beginning; 0 if too few to share."""
    start = len(state.session.cached)
    if tokens[start : start + _LEAST_SHARED] != state.feed[:_LEAST_SHARED]:  # nearly always
        return 0
    if tokens[:start] != state.session.cached:
        return 0
    shared = _common_prefix(tokens[start:], state.feed[:-1])
    return shared if shared >= _LEAST_SHARED else 0
