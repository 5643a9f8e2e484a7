"""A model behind an OpenAI-compatible chat endpoint: requests, answers and errors.

Such a server takes and returns text without token ids and log-probabilities, so its replies can't be trained on.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eh_gym.errors import ConfigError, EHError, SamplerError
from eh_gym.replies import THINK, split_reply
from eh_gym.surrogates import escaped
from harness.agents.protocol import read_function_call
from harness.agents.writing import written_calls
from harness.rollout.conversation import NoRoom, UnreadableRequestError
from harness.settings.evaluate import Endpoint

if TYPE_CHECKING:
    import openai

Message = dict[str, Any]
_SEEDS = 2**31  # every server takes seeds below this

# How servers say that the context is full: OpenAI by an error code, others only in the message.
_OVERFLOW = re.compile(
    r"context[_ ](length|size|window)|maximum (model|context|input)? ?length|prompt is too long", re.I
)
_BY_REQUEST = (400, 413, 422, 500)  # how servers answer what they can't read; or all requests, as without credit


@dataclass(frozen=True)
class EndpointReply:
    """One answer of the model. JSON can hold it.

    Attributes:
        text: The answer. A thought that the server left in it is cut off.
        cut: Whether it reached the token limit.
        message: The model's message, as the next request repeats it, without a thought that the server returns
            separately.
        prompt_tokens: The tokens of the request, as the endpoint counts them; 0 if it does not report them.
    """

    text: str
    cut: bool
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    message: Message = field(default_factory=dict)
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
        self._key = key = os.environ.get(name, "")
        self._key_hint = f"; the key is that of the variable {name}; set it, or name another with --api-key-env"
        if not key and not server.base_url and not os.environ.get("OPENAI_BASE_URL"):
            raise ConfigError(
                f"there is no key in the environment variable {name}; set it, name another with --api-key-env, "
                "or give the --base-url of a server that needs none"
            )
        self._client = self._openai.AsyncOpenAI(
            base_url=server.base_url or None,
            api_key=key or "none",
            max_retries=server.retries,
            timeout=server.deadline_s,
        )
        self.url = str(self._client.base_url).rstrip("/")
        self._model, self._temperature = model, temperature
        self._max_tokens, self._tags = max_tokens, tags
        self._limit = "max_tokens"
        self._more = {"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {}

    async def close(self) -> None:
        await self._client.close()

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        seed: int,
        tools: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> EndpointReply:
        """Returns the model's answer to a conversation, with functions on offer in the protocol's form.

        The server may ignore the seed. `options` are further ones of the request, or replace the endpoint's.
        `max_tokens` may lower the endpoint's own limit.

        Raises:
            NoRoom: The conversation is too long for the model.
            ConfigError: The endpoint refuses the key or the model.
            UnreadableRequestError: It refuses this request, or fails at it, and answers another.
            SamplerError: The endpoint can't be reached, fails, or does not answer in time.
        """
        openai = self._openai
        try:
            body = {"messages": _whole(list(messages)), "seed": seed % _SEEDS, "temperature": self._temperature}
            body |= {"tools": _whole(list(tools))} if tools else {}
            body["extra_body"] = self._more | _whole(dict(options or {}))
            completion = await self._ask(body, min(self._max_tokens, max_tokens or self._max_tokens))
        except openai.APIStatusError as error:
            failure = self._explained(error)
            if error.status_code in _BY_REQUEST and isinstance(failure, SamplerError) and await self._is_well():
                failure = UnreadableRequestError(f"{failure}; it answers others")
            raise failure from error
        except openai.APIConnectionError as error:
            raise SamplerError(
                f"{self.url} can't be reached ({error.__cause__ or error}); is the server running, and is --base-url "
                "right? It usually ends in /v1. For a server that is slow, raise --deadline-s or lower --slots"
            ) from error
        except (openai.APIError, ValueError) as error:  # no JSON
            raise SamplerError(f"{self.url} answered, but not with a chat completion: {error}") from error
        try:
            return self._read(completion, seed)
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            raise SamplerError(f"{self.url} answered, but not with a chat completion: {completion!r:.300}") from error

    def _explained(self, error: openai.APIStatusError) -> EHError:
        status, message = error.status_code, _message(error)
        message = message.replace(self._key, "KEY") if self._key else message
        if status < 500 and (error.code == "context_length_exceeded" or _OVERFLOW.search(message)):
            return NoRoom(message)
        if status >= 500 or status in (408, 409, 429):
            return SamplerError(
                f"{self.url} answered {status} ({message}), even after all retries; lower --slots, raise --retries, or "
                "try later"
            )
        if status in _BY_REQUEST:
            return SamplerError(f"{self.url} refuses the request ({status}: {message})")
        hints = {401: self._key_hint, 403: self._key_hint}
        hints[404] = f"; has the server a model {self._model!r}, and is --base-url right? It usually ends in /v1"
        return ConfigError(f"{self.url} refuses the request ({status}: {message}){hints.get(status, '')}")

    async def _is_well(self) -> bool:
        """Whether the server answers a request that no agent wrote."""
        greeting = {"messages": [{"role": "user", "content": "Hello"}], "extra_body": self._more}
        try:
            await self._ask(greeting, self._max_tokens)
        except (self._openai.OpenAIError, ValueError):  # no JSON
            return False
        return True

    async def _ask(self, options: Mapping[str, Any], limit: int) -> Any:
        create: Any = functools.partial(self._client.chat.completions.create, model=self._model, **options)
        try:
            return await create(**{self._limit: limit})
        except self._openai.BadRequestError as error:
            # OpenAI's newer models take the limit only under its new name, most other servers under its old one.
            if "max_completion_tokens" not in _message(error):
                raise
            self._limit = "max_completion_tokens"
            return await create(**{self._limit: limit})

    def _read(self, completion: Any, seed: int) -> EndpointReply:
        usage = completion.usage
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else (0, 0)
        choice = completion.choices[0]
        reply = choice.message
        content = reply.content or ""
        thought, text = split_reply(content, self._tags)
        calls: list[dict[str, Any]] = [
            {
                "id": str(call.id or f"call{seed}_{at}"),  # some servers leave it out, or the type
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for at, call in enumerate(reply.tool_calls or [])
            if call.type != "custom"
        ]
        calls = written_calls(calls)  # some servers send the arguments themselves
        for call in calls:
            read_function_call(call["id"], call["function"])  # raises TypeError
        message: Message = {"role": "assistant", "content": content}
        if calls:  # the content goes back as it came; it may be null
            message |= {"content": reply.content, "tool_calls": calls}
        # The protocol has no field for thoughts. vLLM calls it `reasoning`, DeepSeek and SGLang `reasoning_content`.
        apart = getattr(reply, "reasoning", None) or getattr(reply, "reasoning_content", None)
        reasoning = apart if isinstance(apart, str) else thought
        cut = choice.finish_reason == "length"
        return EndpointReply(text, cut, reasoning, calls, message, *(int(count or 0) for count in counts))


def _whole(value: Any) -> Any:
    """A JSON value with surrogate halves escaped, which cannot be sent."""
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return escaped(value) if isinstance(value, str) else value


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(message or error.message).split())[:300]
