"""Stand-ins of hosted models' servers, as far as their public documentation tells: what each demands, adds and refuses.

Each is a function of a request that `chat_server` serves: `provider(choose)`, where `choose` returns the name and
the arguments of the function that the model calls, or a text.

- Gemini: https://ai.google.dev/gemini-api/docs/thought-signatures (OpenAI compatibility)
- DeepSeek: https://api-docs.deepseek.com/guides/thinking_mode (tool calls)
- OpenRouter: https://openrouter.ai/docs/use-cases/reasoning-tokens, https://openrouter.ai/docs/api-reference/errors
- Azure: https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter
- Mistral: https://docs.mistral.ai/api (its schemas forbid other fields), https://docs.mistral.ai/capabilities/reasoning
"""

import itertools
import json

import chat_server

FLAGGED = "flagged"
_TOP = {"model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "response_format"}
_TOP |= {"tools", "tool_choice", "presence_penalty", "frequency_penalty", "n", "parallel_tool_calls", "metadata"}
_OF_ROLE = {"assistant": {"content", "tool_calls", "prefix"}, "tool": {"content", "tool_call_id", "name"}}


def _served(choose, check, add):
    """Answers what `choose` says. `check` may refuse a request, and `add` changes the choice of an answer."""
    numbers = itertools.count()

    def answer(request, _=0):
        if refused := check(request):
            return refused
        chosen, number = choose(request), next(numbers)
        words = isinstance(chosen, str)
        body = chat_server.completion(request, chosen if words else None, "stop" if words else "tool_calls")
        [choice] = body["choices"]
        if not words:
            function = {"name": chosen[0], "arguments": json.dumps(chosen[1])}
            choice["message"]["tool_calls"] = [{"id": f"call{number:05d}", "type": "function", "function": function}]
        return add(body, choice, choice["message"], number) or {"body": body}

    return answer


def _past(request):
    return [message for message in request["messages"] if message["role"] == "assistant" and message.get("tool_calls")]


def gemini(choose):
    def check(request):
        for message in _past(request):
            call = message["tool_calls"][0]
            if call.get("extra_content") != {"google": {"thought_signature": f"sign {call['id']}"}}:
                words = "Function call is missing a thought_signature in functionCall parts."
                error = {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}
                return {"status": 400, "body": [{"error": error}]}
        return None

    def add(body, choice, message, number):
        for call in message.get("tool_calls", ()):
            call["extra_content"] = {"google": {"thought_signature": f"sign {call['id']}"}}

    return _served(choose, check, add)


def deepseek(choose):
    thoughts = {}

    def check(request):
        for message in _past(request):
            if message.get("reasoning_content") != thoughts[message["tool_calls"][0]["id"]]:
                words = "The `reasoning_content` in the thinking mode must be passed back to the API."
                return chat_server.error(400, words, code="invalid_request_error")
        return None

    def add(body, choice, message, number):
        message["reasoning_content"] = f"Thought {number}."
        thoughts.update((call["id"], f"Thought {number}.") for call in message.get("tool_calls", ()))
        body["usage"] |= {"prompt_cache_hit_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}}

    return _served(choose, check, add)


def openrouter(choose):
    """Every fifth answer is an error with the status 200, and every seventh ends by one."""
    answers = itertools.count(1)

    def details(name):
        data = {"type": "reasoning.encrypted", "data": f"sealed {name}", "format": "anthropic-claude-v1", "index": 0}
        return [{"type": "reasoning.text", "text": "Hm.", "index": 1}, data]

    def check(request):
        if FLAGGED in str(request["messages"]):
            words = "This model requires moderation. Your input was flagged"
            return {"status": 403, "body": {"error": {"code": 403, "message": words, "metadata": {"reasons": ["x"]}}}}
        for message in _past(request):
            if message.get("reasoning_details") != details(message["tool_calls"][0]["id"]):
                return chat_server.error(400, "reasoning_details are missing or altered")
        if next(answers) % 5 == 0:
            raw = {"code": 502, "message": "Provider returned error", "metadata": {"raw": "upstream is overloaded"}}
            return {"body": {"error": raw}, "headers": {"retry-after-ms": "1"}}
        return None

    def add(body, choice, message, number):
        choice["native_finish_reason"] = "tool_use"
        message |= {"refusal": None, "reasoning": "Hm."}
        for call in message.get("tool_calls", ()):
            message["reasoning_details"] = details(call["id"])
        if number % 7 == 6:
            error = {"code": 502, "message": "Provider disconnected"}
            choice |= {"finish_reason": "error", "error": error, "message": {"role": "assistant", "content": ""}}
            return {"body": body, "headers": {"retry-after-ms": "1"}}
        return None

    return _served(choose, check, add)


def azure(choose):
    """Filters prompts that say `FLAGGED`, and the ninth answer."""
    safe = {"hate": {"filtered": False, "severity": "safe"}}

    def check(request):
        if FLAGGED in str(request["messages"]):
            words = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
            return chat_server.error(400, words, code="content_filter")
        return None

    def add(body, choice, message, number):
        body["prompt_filter_results"] = [{"prompt_index": 0, "content_filter_results": safe}]
        choice["content_filter_results"] = safe
        message |= {"refusal": None, "annotations": []}
        if number == 8:
            choice |= {"finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}

    return _served(choose, check, add)


def mistral(choose):
    def check(request):
        strange = request.keys() - _TOP
        for message in request["messages"]:
            strange |= message.keys() - _OF_ROLE.get(message["role"], {"content"}) - {"role"}
        if strange:
            forbidden = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}
            detail = [forbidden | {"loc": ["body", name]} for name in sorted(strange)]
            body = {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None}
            return {"status": 422, "body": body}
        return None

    def add(body, choice, message, number):
        text = message["content"]
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
        message["content"] = [thinking, *([{"type": "text", "text": text}] if text else [])]

    return _served(choose, check, add)


PROVIDERS = {"gemini": gemini, "deepseek": deepseek, "openrouter": openrouter, "azure": azure, "mistral": mistral}
