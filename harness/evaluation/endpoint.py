"""A model behind an OpenAI-compatible chat endpoint: requests, answers and errors.

Such a server takes and returns text without token ids and log-probabilities, so its replies can't be trained on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eh_gym.errors import ConfigError, EHError, SamplerError
from eh_gym.replies import THINK, split_reply
from eh_gym.surrogates import escaped
from harness.agents.hosted import thought, words
from harness.agents.keys import hide_key, without_keys
from harness.agents.protocol import read_function_call
from harness.rollout.conversation import REFUSED, NoRoom, UnreadableRequestError
from harness.settings.evaluate import Endpoint

if TYPE_CHECKING:
    import openai

Message = dict[str, Any]
_SEEDS = 2**31  # every server takes seeds below this

# How servers say that the context is full: OpenAI by an error code, others only in the message.
_OVERFLOW = re.compile(
    r"context[_ ](length|size|window)|maximum (model|context|input)? ?length|prompt is too long", re.I
)
_MOST_WORDS = 500  # characters of what a server says
_NEW_LIMIT = "max_completion_tokens"


@dataclass(frozen=True)
class EndpointReply:
    """One answer of the model.

    Attributes:
        body: The server's answer, a chat completion as JSON.
        message: The model's message in it, as the next request repeats it.
        text: What the message says. A thought that the server left in it is cut off.
        reasoning: The thought.
        calls: The message's function calls.
        cut: Whether it reached the token limit.
        prompt_tokens: The tokens of the request, as the endpoint counts them; 0 if it does not report them.
    """

    body: str
    message: Message
    text: str
    reasoning: str = ""
    calls: list[Message] = field(default_factory=list)
    cut: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def unfinished(self) -> bool:
        return bool(self.reasoning and not self.text and not self.calls)


class ChatEndpoint:
    """A model behind ``POST {base_url}/chat/completions``. The caller closes it.

    The client waits between two tries with exponential backoff, or as the server says. `template_kwargs` are for
    servers that take them, and `tags` stand around a thought that the server leaves in the text. Raises ConfigError if
    the key or the model's name is missing.
    """

    def __init__(
        self,
        model: str,
        server: Endpoint,
        *,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        template_kwargs: Mapping[str, Any] | None = None,
        tags: tuple[str, str] = THINK,
    ) -> None:
        if not model:
            raise ConfigError("--policy openai needs --model NAME, the model's name at the endpoint")
        import openai  # of an extra

        self._openai = openai
        name = server.api_key_env
        key = os.environ.get(name, "")
        self._key_hint = f"; the key is that of the variable {name}; set it, or name another with --api-key-env"
        if not key and not server.base_url and not os.environ.get("OPENAI_BASE_URL"):
            raise ConfigError(
                f"there is no key in the environment variable {name}; set it, name another with --api-key-env, "
                "or give the --base-url of a server that needs none"
            )
        hide_key(key)
        self._client = openai.AsyncOpenAI(
            base_url=server.base_url or None,
            api_key=key or "none",
            max_retries=server.retries,
            timeout=server.deadline_s,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_as_an_error]}),
        )
        self.url = str(self._client.base_url).rstrip("/")
        self._model, self._tags, self._max_tokens = model, tags, max_tokens
        self._limit = "max_tokens"
        self._fields = {"temperature": temperature, "chat_template_kwargs": dict(template_kwargs or {}) or None}
        self._extra = dict(server.extra_body)

    async def close(self) -> None:
        await self._client.close()

    async def reply(self, body: Mapping[str, Any], *, seed: int, max_tokens: int | None = None) -> EndpointReply:
        """Returns the model's answer.

        Args:
            body: The messages, and any other fields of a chat completion, which replace the endpoint's own.
            seed: A seed, which the server may ignore.
            max_tokens: A limit that may lower the endpoint's own.

        Raises:
            NoRoom: The conversation is too long for the model.
            ConfigError: The endpoint refuses the key or the model.
            UnreadableRequestError: It refuses this request, or fails at it, and answers another.
            SamplerError: The endpoint can't be reached, fails, or does not answer in time.
        """
        openai = self._openai
        try:
            text = await self._ask(_whole(dict(body)), seed, min(self._max_tokens, max_tokens or self._max_tokens))
        except openai.APIStatusError as error:
            raise await self._explained(error) from error
        except openai.APIConnectionError as error:
            raise SamplerError(
                f"{self.url} can't be reached ({error.__cause__ or error}); is the server running, and is --base-url "
                "right? It usually ends in /v1. For a server that is slow, raise --deadline-s or lower --slots"
            ) from error
        try:
            return self.read(text, seed)
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            raise SamplerError(f"{_words(text)} ({self.url} answered, but not with a chat completion)") from error

    def read(self, text: str, seed: int) -> EndpointReply:
        """Reads a chat completion. Some servers leave out ids of calls, or send arguments that are no text."""
        answer = json.loads(text)
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        message = choice["message"]
        message.setdefault("role", "assistant")
        calls = [call for call in message.get("tool_calls") or () if call.get("type") != "custom"]
        for at, call in enumerate(calls):
            call |= {"id": str(call.get("id") or f"call{seed}_{at}"), "type": "function"}
            arguments = call["function"].get("arguments")
            if not isinstance(arguments, str):
                call["function"]["arguments"] = json.dumps(arguments or {}, ensure_ascii=False)
            read_function_call(call["id"], call["function"])  # raises TypeError
        inside, said = split_reply(words(message.get("content")), self._tags)
        counts = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        cut = choice.get("finish_reason") == "length"
        body = text if answer == json.loads(text) else json.dumps(answer)
        said = said or message.get("refusal") or ""
        return EndpointReply(body, message, said, thought(message) or inside, calls, cut, *counts)

    async def _explained(self, error: openai.APIStatusError) -> EHError:
        status, words = error.status_code, _words(error.response.text)
        said = f"{words} ({self.url} answered {error.response.extensions.get('how', status)}"
        if status < 500 and (error.code == "context_length_exceeded" or _OVERFLOW.search(words)):
            return NoRoom(words)
        passing = SamplerError(f"{said}, even after all retries); lower --slots, raise --retries, or try later")
        if _passes(status):
            return passing
        try:
            await self._ask({"messages": [{"role": "user", "content": "Hello"}]}, 0, self._max_tokens)
        except self._openai.APIConnectionError:
            return passing
        except self._openai.APIStatusError as other:
            if _passes(other.status_code):
                return passing
            hints = dict.fromkeys((401, 403), self._key_hint)
            hints |= dict.fromkeys((400, 422), """; leave out a field that it refuses: --extra-body '{"NAME": null}'""")
            hints[404] = f"; has the server a model {self._model!r}, and is --base-url right? It usually ends in /v1"
            kind = SamplerError if status in (400, 413, 422, 500) else ConfigError
            return kind(f"{said}){hints.get(status, '')}")
        return UnreadableRequestError(f"{said}; it {REFUSED})")

    async def _ask(self, body: Mapping[str, Any], seed: int, limit: int) -> str:
        limit_name = self._limit
        fields = {"model": self._model, "seed": seed % _SEEDS, limit_name: limit, **self._fields, **body, **self._extra}
        fields = {name: value for name, value in fields.items() if value is not None}
        try:
            return await self._client.post("/chat/completions", body=fields, cast_to=str)
        except self._openai.BadRequestError as error:
            # OpenAI's newer models take the limit only under its new name, most other servers under its old one.
            if limit_name not in fields or limit_name not in _words(error.response.text) or limit_name == _NEW_LIMIT:
                raise
            self._limit = _NEW_LIMIT
            return await self._ask(body, seed, limit)


def _passes(status: int) -> bool:
    """Whether a server answers so to any request, for a while."""
    return status > 500 or status in (408, 409, 429)


async def _as_an_error(response: Any) -> None:
    """Lets the client retry an answer with the status 200 that has no choice, or one that ended by an error."""
    if response.status_code != 200:
        return
    await response.aread()
    try:
        choice = json.loads(response.text)["choices"][0]
        if choice["message"] is not None and choice.get("finish_reason") != "error":
            return
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    code = _error(response.text).get("code")
    response.extensions["how"] = "200, but not with a chat completion"
    response.status_code = code if code in range(400, 600) else 500
    response.headers["x-should-retry"] = "true"


def _error(text: str) -> dict[str, Any]:
    """The error in a server's answer, or in its first choice; empty if it has none that can be read."""
    try:
        answer = json.loads(text)
        answer = answer[0] if isinstance(answer, list) else answer  # Gemini
        first: dict[str, Any] = next(iter(answer.get("choices") or ()), {})
        error = answer.get("error") or first.get("error") or answer
        return error if isinstance(error, dict) else {"message": error}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _words(text: str) -> str:
    error = _error(text)
    message, raw = error.get("message") or text, (error.get("metadata") or {}).get("raw")  # OpenRouter's providers'
    parts = [part if isinstance(part, str) else json.dumps(part) for part in (message, raw) if part]
    return " ".join(without_keys(" ".join(parts)).split())[:_MOST_WORDS]


def _whole(value: Any) -> Any:
    """A JSON value with surrogate halves escaped, which cannot be sent."""
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return escaped(value) if isinstance(value, str) else value
