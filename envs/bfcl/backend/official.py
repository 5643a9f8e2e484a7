"""BFCL's own prompts.

- python: those of bfcl-eval's prompt mode, with its default system prompt.
- hermes: those of its handler for Qwen's function calling.
- native: no system prompt, and the documents are tools, as in its handler for OpenAI's function calling.

Texts of modules that need packages which the backend leaves out are copied here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

Document = dict[str, Any]

# bfcl_eval.utils._get_language_specific_hint
_HINT = " Note that the provided function is in Python 3 syntax."
# bfcl_eval.model_handler.utils._cast_to_openai_type
_FLOAT = " This is a float type value."
# bfcl_eval.model_handler.local_inference.qwen_fc, which is Qwen's published chat template
_QWEN_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_hint(document: Document) -> Document:
    return {**document, "description": document["description"] + _HINT}


def tool_document(document: Document) -> Document:
    """A copy of a document in JSON Schema's types, as bfcl_eval.model_handler.utils.convert_to_tool."""
    return {
        **document,
        "parameters": {**document["parameters"], "type": "object"} | _properties(document["parameters"]),
    }


def _properties(schema: Document) -> Document:
    return {"properties": {name: _schema(about) for name, about in schema["properties"].items()}}


def _schema(about: Document) -> Document:
    """A parameter's document. As upstream, only the items of a list are looked at below a list."""
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI as TYPES

    schema = {**about, "type": TYPES.get(about.get("type", "string"), "string")}
    if about.get("type") == "float":
        schema |= {"format": "float", "description": about["description"] + _FLOAT}
    if schema["type"] in ("array", "object"):
        if "properties" in about:
            schema |= _properties(about)
        elif "items" in about:
            schema["items"] = {**about["items"], "type": TYPES[about["items"]["type"]]}
    return schema


def system_prompt(functions: Sequence[Document], action_format: str) -> str:
    if action_format == "native":
        return ""
    from bfcl_eval.constants import default_prompts as texts

    documents = [with_hint(document) for document in functions]
    if action_format == "hermes":
        return _QWEN_TOOLS.format(tools="\n".join(map(json.dumps, documents)))
    chosen = dict(parse_qsl(texts.DEFAULT_SYSTEM_PROMPT_FORMAT))
    style = texts.PROMPT_STYLE_TEMPLATES[chosen["style"]]
    template: str = texts.PROMPT_TEMPLATE_MAPPING[chosen["prompt_fmt"]]
    return template.format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=style["tool_call_no_tag"].format(
            output_format=texts.OUTPUT_FORMAT_MAPPING[chosen["ret_fmt"]],
            param_types=texts.PARAM_TYPE_MAPPING[chosen["ret_fmt"]],
        ),
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=style["available_tools"].format(
            format=chosen["func_doc_fmt"], functions=json.dumps(documents, indent=4)
        ),
    )


def reveal_message(functions: Sequence[Document]) -> str:
    from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING as TEXT

    return str(TEXT.format(functions=list(functions)))


def results_message(calls: Sequence[str], results: Sequence[str]) -> str:
    return repr([{"role": "tool", "name": c, "content": r} for c, r in zip(calls, results, strict=True)])
