"""bfcl-eval's own runner and checker, served by a worker: what EH-BFCL is compared with.

The official rollout loop, decoders, executor and checker run unchanged. They are cut out of bfcl-eval's source files by
name, because importing those files needs packages that nothing here uses (and creates folders in site-packages). Only
the model is replaced: by a script of messages.

The process is upstream as it is until ``isolate`` is called; that undoes its two aliasing bugs and nothing else.
"""

import ast
import contextlib
import copy
import importlib.util
import io
import itertools
import json
import re
import time
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import bfcl_eval.eval_checker.multi_turn_eval.func_source_code.posting_api as posting
import bfcl_eval.eval_checker.multi_turn_eval.func_source_code.travel_booking as travel
import bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils as utils
from bfcl_eval.constants import default_prompts, executable_backend_config
from bfcl_eval.constants.enums import ModelStyle, ReturnFormat
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

ROOT = Path(importlib.util.find_spec("bfcl_eval").submodule_search_locations[0])
_runs = itertools.count()


def _cut(path, names, namespace):
    """Executes the definitions called ``names`` of a source file, and nothing else of it, in ``namespace``."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    assert len(tree.body) == len(names), (path, names)
    exec(compile(tree, path, "exec"), namespace)  # bfcl-eval's own text
    return namespace


def _rows(path):
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


decoders = _cut(
    "model_handler/utils.py",
    [
        *("ast_parse", "resolve_ast_call", "resolve_ast_by_type", "default_decode_execute_prompting"),
        *("parse_nested_value", "decoded_output_to_execution_list", "convert_to_function_call"),
        *("format_execution_results_prompting", "formulate_system_prompt", "format_function_doc"),
        *("parse_prompt_variation_params", "convert_to_tool", "_cast_to_openai_type"),
    ],
    {
        **vars(default_prompts),
        **{"ast": ast, "copy": copy, "json": json, "re": re},
        **{"GORILLA_TO_OPENAPI": GORILLA_TO_OPENAPI, "ModelStyle": ModelStyle, "ReturnFormat": ReturnFormat},
    },
)
runner = {
    **vars(default_prompts),
    **vars(executable_backend_config),
    **{"json": json, "deepcopy": copy.deepcopy, "Any": object, "ModelStyle": object, "ReturnFormat": ReturnFormat},
    "final": lambda method: method,
    "is_memory": lambda category: False,
    "is_memory_prereq": lambda entry: False,
    "execute_multi_turn_func_call": utils.execute_multi_turn_func_call,
    "is_empty_execute_response": utils.is_empty_execute_response,
}
BaseHandler = _cut("model_handler/base_handler.py", ["BaseHandler"], runner)["BaseHandler"]
_hermes = {"json": json, "re": re, "Any": object, "override": lambda method: method, "OSSHandler": object, **decoders}
QwenHandler = _cut("model_handler/local_inference/qwen.py", ["QwenHandler"], _hermes)["QwenHandler"]
QwenFCHandler = _cut("model_handler/local_inference/qwen_fc.py", ["QwenFCHandler"], _hermes)["QwenFCHandler"]
OpenAICompletionsHandler = _cut(
    "model_handler/api_inference/openai_completion.py",
    ["OpenAICompletionsHandler"],
    {
        **decoders,
        **{"json": json, "time": time, "Any": object, "BaseHandler": BaseHandler},
        "retry_with_backoff": lambda **_: lambda method: method,
        "RateLimitError": None,
    },
)["OpenAICompletionsHandler"]
evaluate = _cut(
    "eval_checker/eval_runner.py",
    ["_evaluate_single_multi_turn_entry"],
    {
        "BaseHandler": BaseHandler,
        "multi_turn_checker": multi_turn_checker,
        "is_empty_execute_response": utils.is_empty_execute_response,
    },
)["_evaluate_single_multi_turn_entry"]
_loader = _cut(
    "utils.py",
    [
        "populate_test_cases_with_predefined_functions",
        "_func_doc_language_specific_pre_processing",
        "_get_language_specific_hint",
    ],
    {
        **dict.fromkeys(("is_java", "is_js", "is_agentic"), lambda _: False),
        "is_multi_turn": lambda entry: True,
        "load_file": _rows,
        "MULTI_TURN_FUNC_DOC_PATH": ROOT / "data/multi_turn_func_doc",
        "MULTI_TURN_FUNC_DOC_FILE_MAPPING": executable_backend_config.MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    },
)
populate = _loader["populate_test_cases_with_predefined_functions"]
with_hint = _loader["_func_doc_language_specific_pre_processing"]


def response(**choice):
    usage = SimpleNamespace(prompt_tokens=0, completion_tokens=0)
    return SimpleNamespace(choices=[SimpleNamespace(**choice)], usage=usage)


class Scripted(BaseHandler):
    def __init__(self, name, script):
        super().__init__(name, 0.0, name, False)
        self.script = script
        self.turn = -1
        self.results = []  # of each step, in order
        self.shown = []  # the message that tells the model of them, in upstream's prompt mode
        self.user = []  # what the user says at each turn

    def _pre_query_processing_prompting(self, test_entry):
        return {}

    def add_first_turn_message_prompting(self, data, message):
        self.turn += 1
        self.said = 0
        self.user.append(message)
        return data

    _add_next_turn_user_message_prompting = add_first_turn_message_prompting

    def _query_prompting(self, data):
        turn = self.script[self.turn]
        message = turn[self.said] if self.said < len(turn) else "Done."
        self.said += 1
        return message, 0.0

    def _parse_query_response_prompting(self, message):
        return QwenHandler._parse_query_response_prompting(None, response(text=message))

    def _add_assistant_message_prompting(self, data, response):
        return data

    def _add_execution_results_prompting(self, data, results, response):
        self.results.append(results)
        self.shown.append(decoders["format_execution_results_prompting"](data, results, response))
        return data


class Python(Scripted):
    def decode_execute(self, message, has_tool_call_tag):
        return decoders["default_decode_execute_prompting"](message, has_tool_call_tag)


class Hermes(Scripted):
    decode_execute = QwenFCHandler.decode_execute
    _extract_tool_calls = staticmethod(QwenFCHandler._extract_tool_calls)


class Native(OpenAICompletionsHandler):
    """Upstream's handler in function-calling mode, with a client that says what the script says."""

    def __init__(self, name, script):
        BaseHandler.__init__(self, name, 0.0, name, True)  # OpenAI's client is left out
        self.model_style = ModelStyle.OPENAI_COMPLETIONS
        self.script, self.requests, self.answers = script, [], []

    def generate_with_backoff(self, *, messages, tools, **_):
        self.messages = messages  # upstream adds to this list, to the end
        messages = [plain(message) for message in messages]
        self.requests.append({"messages": messages, "tools": copy.deepcopy(tools)})
        users = [at for at, message in enumerate(messages) if message["role"] == "user"]
        turn, said = self.script[len(users) - 1], len([m for m in messages[users[-1] :] if m["role"] == "assistant"])
        message = self.said(turn[said] if said < len(turn) else "Done.")
        self.answers.append(plain(message))
        return response(message=message), 0.0

    def said(self, text):
        try:
            calls = json.loads(text)["tool_calls"]
        except (ValueError, TypeError, KeyError):
            return SimpleNamespace(role="assistant", content=text, tool_calls=None)
        named = [
            SimpleNamespace(id=f"call{len(self.requests)}-{at}", function=SimpleNamespace(**call["function"]))
            for at, call in enumerate(calls)
        ]
        return SimpleNamespace(role="assistant", content=None, tool_calls=named)


def plain(message):
    if isinstance(message, dict):
        return dict(message)
    calls = [{"id": c.id, "type": "function", "function": vars(c.function)} for c in message.tool_calls or []]
    return {"role": message.role, "content": message.content} | ({"tool_calls": calls} if calls else {})


FORMATS = {"python": Python, "hermes": Hermes, "native": Native}
_categories = {}


def entry_of(task_id):
    category = task_id.rsplit("_", 1)[0]
    if category not in _categories:
        entries = populate(_rows(ROOT / "data" / f"BFCL_v4_{category}.json"))
        answers = _rows(ROOT / "data/possible_answer" / f"BFCL_v4_{category}.json")
        _categories[category] = {e["id"]: (e, a["ground_truth"]) for e, a in zip(entries, answers, strict=True)}
    entry, ground_truth = _categories[category][task_id]
    return {**entry, "function": list(entry["function"])}, ground_truth


def play(task_id, script, action_format):
    """The official rollout of a script and its official verdict."""
    entry, ground_truth = entry_of(task_id)
    name = f"run{next(_runs)}"  # upstream keeps instances in globals() by this name
    handler = FORMATS[action_format](name, script)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if action_format == "native":  # the documents that upstream's runner gives to its handlers
                entry["function"] = with_hint(copy.deepcopy(entry["function"]), task_id.rsplit("_", 1)[0])
                results, _ = handler.inference_multi_turn_FC(entry, False, True)
                said = [
                    (role, list(m)) for role, m in itertools.groupby(map(plain, handler.messages), itemgetter("role"))
                ]
                handler.results = [[m["content"] for m in messages] for role, messages in said if role == "tool"]
                handler.user = [[m] for role, messages in said if role == "user" for m in messages]
            else:
                results, _ = handler.inference_multi_turn_prompting(entry, False, True)
        category = task_id.rsplit("_", 1)[0]
        verdict = evaluate(handler, task_id, results, ground_truth, entry, name, category)
    finally:
        for key in [key for key in vars(utils) if key.startswith(f"{name}_")]:
            del vars(utils)[key]
    return {
        "valid": verdict["valid"],
        "error_type": verdict.get("error", {}).get("error_type"),
        "results": handler.results,
        "user": handler.user,
        "shown": getattr(handler, "shown", None),
        "messages": results,
        **({"requests": handler.requests, "answers": handler.answers} if action_format == "native" else {}),
    }


def system_prompts(task_id):
    """What upstream tells a model first: in prompt mode, through its handler of Qwen, and as tools."""
    entry, _ = entry_of(task_id)
    functions = with_hint(copy.deepcopy(entry["function"]), task_id.rsplit("_", 1)[0])
    qwen = QwenFCHandler._format_prompt(None, [{"role": "user", "content": ""}], functions)
    return {
        "python": decoders["formulate_system_prompt"](default_prompts.DEFAULT_SYSTEM_PROMPT_FORMAT, functions),
        "hermes": qwen.split("<|im_start|>system\n")[1].split("<|im_end|>")[0],
        "native": decoders["convert_to_tool"](functions, GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS),
    }


def isolate():
    """Undoes both aliasing bugs: every post_tweet gets lists of its own, every simulator its own long-context
    records."""
    upstream_post = posting.TwitterAPI.post_tweet

    def post_tweet(self, *args, **kwargs):
        if len(args) < 2:
            kwargs.setdefault("tags", [])
        if len(args) < 3:
            kwargs.setdefault("mentions", [])
        return upstream_post(self, *args, **kwargs)

    posting.TwitterAPI.post_tweet = post_tweet
    for method, table in (
        ("_add_credit_cards", "CREDIT_CARD_EXTENSION"),
        ("_add_booking_records", "BOOKING_RECORD_EXTENSION"),
    ):
        _give_each_its_own(method, table, copy.deepcopy(getattr(travel, table)))


def _give_each_its_own(method, table, pristine):
    upstream = getattr(travel.TravelAPI, method)

    def add(self):
        setattr(travel, table, copy.deepcopy(pristine))
        upstream(self)

    setattr(travel.TravelAPI, method, add)


def handle(method, params):
    if method == "play":
        return play(params["task_id"], params["script"], params["action_format"])
    if method == "isolate":
        return isolate()
    if method == "system_prompts":
        return system_prompts(params["task_id"])
    if method == "entry":
        entry, ground_truth = entry_of(params["task_id"])
        return {
            "ground_truth": ground_truth,
            "functions": entry["function"] + [d for docs in entry.get("missed_function", {}).values() for d in docs],
            "initial_config": entry["initial_config"],
        }
    raise ValueError(method)
