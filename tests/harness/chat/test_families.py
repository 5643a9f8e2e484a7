"""Each family's real chat template: thoughts, tools, and a five-turn episode beside the template's own text.

The templates are read from the TRL package that is installed. TRL has them without their tokenizers, so each gets a
byte-level tokenizer that has the template's own control tokens. The table in docs/models.md is made here;
`EH_WRITE_DOCS=1 pytest tests/harness/chat/test_families.py` writes it anew.
"""

import functools
import json
import os
import re
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from tokenizers import processors

from eh_gym.errors import ConfigError
from harness.agents.protocol import ModelCall
from harness.chat.chat import ChatFormat
from harness.rollout.agent_conversation import AgentConversation
from harness.settings.model import Model
from harness.settings.rollout import Rollout
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory

trl = pytest.importorskip("trl", reason="TRL carries the templates and the parsers")

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
FAMILIES = {
    "Qwen2.5": "qwen2_5",
    "Qwen3": "qwen3",
    "Qwen3-2507 Instruct": "qwen3_instruct_2507",
    "Qwen3.5": "qwen3_5_think",
    "Qwen3.5, no thinking": "qwen3_5_nothink",
    "Qwen3.6": "qwen3_6",
    "Qwen3.8": "qwen3_8",
    "Llama 3": "llama3",
    "Llama 3.1": "llama3_1",
    "Llama 3.2": "llama3_2",
    "Gemma 1 and 2": "gemma",
    "Gemma 3": "gemma3",
    "Gemma 4": "gemma4_v5",
    "Phi-3": "phi3",
    "Phi-3.5": "phi3_5",
    "gpt-oss": "gptoss",
    "DeepSeek-R1 Distill": "deepseek_r1_distill",
    "DeepSeek-V3": "deepseekv3",
    "GLM-4.5": "glm4moe",
    "Nemotron 3": "nemotron_3_nano",
    "LFM2": "lfm2_v2",
    "LFM2.5": "lfm2_2_5_v2",
    "Aya Expanse": "cohere",
    "Tiny Aya": "cohere2",
    "Muse Glimmer": "muse_glimmer",
}
"""The families that are tested, and the names of their templates in TRL."""

_EOS = {"gptoss": "<|return|>", "muse_glimmer": "<|eot|>"}
_CONTROL = re.compile(
    r"<\|[^<>|\s'\"{}]+\|?>|<[^<>|\s'\"{}=/]+\|>|<｜[^<>]+?｜>|</?(?:think|start_of_turn|end_of_turn|tool_call|tool_response)>"
)
_NOT_SPECIAL = re.compile(r"</?(think|tool_call|tool_response)>")  # as in these families' own tokenizers


ALL = pytest.mark.parametrize("family", FAMILIES)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}, "all": {"type": "boolean"}},
                "required": [],
            },
        },
    }
    for name in ("find", "pwd")
]


def template_of(name):
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_for(template, eos="</s>"):
    found = sorted(set(_CONTROL.findall(template)))
    words = [token for token in found if _NOT_SPECIAL.fullmatch(token)]
    return byte_tokenizer(template, words, [t for t in found if t not in words], eos_token=eos, bos_token="<s>")


@functools.cache
def tokenizer_of(family):
    name = FAMILIES[family]
    return tokenizer_for(template_of(name), _EOS.get(name, "</s>"))


@functools.cache
def chat_of(family):
    return ChatFormat(tokenizer_of(family))


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def has_tools(family):
    try:
        chat_of(family).tool_format()
    except ConfigError:
        return False
    return True


def calling(*calls):
    made = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return json.dumps({"role": "assistant", "content": "", "tool_calls": made})


def results_ids(chat, action, results, *, stopped=True):
    answers = chat.result_messages(action, results)
    return chat.following_ids([answer["name"] for answer in answers], answers, stopped=stopped)


def written(chat, thought, answer):
    style = chat.reasoning
    if style.name == "none":
        return answer
    return ("" if style.name == "opened" else style.opening) + thought + style.end + answer


def five_turns(family):
    chat, tokenizer = chat_of(family), tokenizer_of(family)
    stop = chat.reply_ids("x")[-1:]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "start c"}]
    ids = chat.prompt_ids("Be brief.", "start c")
    for turn in range(5):
        reply = ids_of(tokenizer, written(chat, f"Thought {turn}.", f"call({turn})")) + stop
        read = chat.read(reply)
        assert (read.action, read.unfinished) == (f"call({turn})", False)
        ids = ids + reply + chat.observation_ids(f"answer {turn}", stopped=True)
        thought = {"reasoning_content": f"Thought {turn}."} if chat.reasoning.name != "none" else {}
        messages += [{"role": "assistant", "content": f"call({turn})", **thought}]
        messages += [{"role": "user", "content": f"answer {turn}"}]
    if not chat._system_apart:
        messages[:2] = [{"role": "user", "content": "Be brief.\n\nstart c"}]
    return chat.text(ids), chat._template(messages)


def row(family):
    chat = chat_of(family)
    grown, whole = five_turns(family)
    assert grown == whole or any("strips the thinking" in note for note in chat.notes)
    thoughts = {"none": "no", "tags": f"`{chat.reasoning.opening.strip()}`", "channels": "channels"}
    thoughts["opened"] = f"`{chat.reasoning.opening}`, opened"
    thought = thoughts[chat.reasoning.name].replace("|", r"\|")
    tools, equal = ("yes" if true else "no" for true in (has_tools(family), grown == whole))
    return f"| {family} | {thought} | {tools} | {equal} |"


def test_the_table_of_families_is_in_the_docs():
    head = "| family | thoughts | native tools | five turns are the template's own text |"
    table = "\n".join([head, "| --- | --- | --- | --- |", *map(row, FAMILIES)])
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("EH_WRITE_DOCS"):
        page = re.sub(r"\| family \|.*?\n\n", lambda _: table + "\n\n", page, flags=re.DOTALL)
        PAGE.write_text(page, encoding="utf-8")
    assert table in page, f"docs/models.md should have:\n{table}"
    assert [family for family in FAMILIES if not chat_of(family)._system_apart] == ["Gemma 1 and 2"]


@ALL
def test_a_thought_is_no_part_of_the_action(family):
    chat, tokenizer = chat_of(family), tokenizer_of(family)
    demonstrated = chat.reply_ids("call(3)")
    assert demonstrated[-1] in chat.stop_ids
    assert (chat.read(demonstrated).action, chat.read(demonstrated).unfinished) == ("call(3)", False)
    ids = ids_of(tokenizer, written(chat, "Maybe call(7)?", "call(3)"))
    assert chat.stop_ids.isdisjoint(ids), "the end of a thought is no end of the reply, as gpt-oss's was"
    read = chat.read(ids)
    assert read.action == "call(3)"
    if chat.reasoning.name == "none":
        assert (read.reasoning, read.thought_tokens) == ("", 0)
        return
    assert read.reasoning == "Maybe call(7)?"
    assert chat.text(ids[read.thought_tokens :]).strip() == "call(3)"
    opening = "" if chat.reasoning.name == "opened" else chat.reasoning.opening
    unclosed = ids_of(tokenizer, opening + "Maybe call(7)?")
    assert chat.read(unclosed).unfinished
    assert chat.read(unclosed).action == ""


@ALL
def test_calls_and_results_go_through_the_family_s_own_form(family):
    if not has_tools(family):
        with pytest.raises(ConfigError, match="format of actions"):
            chat_of(family).prompt_ids("Be brief.", "start", TOOLS)
        return
    chat = chat_of(family)
    ids = chat.prompt_ids("Be brief.", "start", TOOLS)
    assert "find" in chat.text(ids)
    for arguments in ({"path": "a b/c", "depth": 7, "all": True}, {"path": "75", "all": False}, {}):
        action = calling(("find", arguments))
        reply = chat.reply_ids(action)
        assert reply[-1] in chat.stop_ids
        read = chat.read(reply, TOOLS)
        assert json.loads(read.action)["tool_calls"] == json.loads(action)["tool_calls"]
        answer = chat.text(results_ids(chat, action, ["found 3"]))
        assert answer.count("found 3") == 1
        assert chat.text(results_ids(chat, action, ["found 3"], stopped=False)).endswith(answer)
        both = chat.text(results_ids(chat, calling(("find", arguments), ("pwd", {})), ["found 3", "here"]))
        assert both.index("found 3") < both.index("here")
    words = chat.read(chat.reply_ids("I am done."), TOOLS)
    assert json.loads(words.action) == {"role": "assistant", "content": "I am done."}


def agents_turn(conversation, episode, reply, *, stop_ids):
    finish = "stop" if reply[-1] in stop_ids else "length"
    turn, answer = conversation.act(Sample(reply, [-1.0] * len(reply), finish, 0))
    episode.turns.append(turn)
    assert answer.finish_reason == ("tool_calls" if answer.calls else finish)
    return answer.message


@pytest.mark.parametrize("tools", [False, True])
@ALL
def test_an_agents_conversation_grows_by_its_new_messages_alone(family, tools):
    chat = chat_of(family)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is c?"}]
    offered = TOOLS if tools else []
    episode = Trajectory("task", 0)
    conversation = AgentConversation(
        chat, 10_000, episode, {"call": ModelCall(messages, offered), "agent_program": None}, Rollout()
    )
    assert ("find" in chat.text(episode.ids)) == tools
    for turn in range(4):
        words = not tools or turn == 2
        if words or has_tools(family):
            action = f"words {turn}" if words else calling(("find", {"path": f"p{turn}", "all": True}))
            reply = chat.reply_ids(action)
        else:
            text = f'<tool_call>\n{{"name": "find", "arguments": {{"path": "p{turn}", "all": true}}}}\n</tool_call>'
            reply = chat.reply_ids(text)
        before = list(episode.ids)
        said = agents_turn(conversation, episode, reply, stop_ids=chat.stop_ids)
        assert before + reply == episode.ids
        calls = [call["function"] for call in said.get("tool_calls", ())]
        assert calls == ([] if words else [{"name": "find", "arguments": {"path": f"p{turn}", "all": True}}])
        # Agents send a call's words as they like, and new messages after it.
        messages = [*messages, {**said, "content": said["content"].strip()}]
        if calls:
            messages.append({"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": f"answer {turn}"})
        else:
            messages.append({"role": "user", "content": f"answer {turn}"})
        known = len(episode.ids)
        conversation.answered({"call": ModelCall(messages, offered)})
        assert episode.ids[:known] == before + reply, "nothing that the model has read or written is tokenised again"
        added = chat.text(episode.ids[known:])
        assert added.count(f"answer {turn}") == 1
        assert "Where is c?" not in added
    assert not episode.earlier


def test_a_call_that_can_t_be_read_is_malformed():
    chat, tokenizer = chat_of("Qwen3"), tokenizer_of("Qwen3")
    for text in (
        '<tool_call>\n{"name": \n</tool_call>',
        "<tool_call>\n[3]\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": 3}\n</tool_call>',
    ):
        read = chat.read(ids_of(tokenizer, text), TOOLS)
        assert read.malformed
        assert "tool_calls" not in read.action


@pytest.mark.parametrize("family", ["gpt-oss", "Llama 3.2", "Muse Glimmer"])
def test_a_date_does_not_move(family):
    text = chat_of(family).text(chat_of(family).prompt_ids("", "start"))
    assert re.search(r"(2024-07-26|26 Jul 2024)", text)


def test_variables_of_the_template():
    tokenizer = tokenizer_of("Qwen3")
    quiet = ChatFormat(tokenizer, Model(chat_template_kwargs={"enable_thinking": False}))
    for ids in (quiet.prompt_ids("", "start"), quiet.observation_ids("ok", stopped=True)):
        assert quiet.text(ids).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(ConfigError, match="enable_thinkin"):
        ChatFormat(tokenizer, Model(chat_template_kwargs={"enable_thinkin": False}))


def test_a_text_begins_once_where_the_tokenizer_begins_each_of_its_own():
    tokenizer = tokenizer_for(template_of("llama3_2"))
    begin = [("<s>", tokenizer.convert_tokens_to_ids("<s>"))]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
    chat = ChatFormat(tokenizer)
    ids = chat.prompt_ids("be good", "start c") + chat.reply_ids("read()") + chat.observation_ids("ok", stopped=True)
    assert chat.text(ids).count("<s>") == 1
    assert chat.text(ids).startswith("<s>")


def test_tags_that_no_family_has_can_be_set():
    tokenizer = tokenizer_for(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
        "{% else %}{{ '<|q|>' + m.content + '<|a|>' }}{% endif %}{% endfor %}"
    )
    chat = ChatFormat(tokenizer, Model(reasoning_format="<muse> </muse>"))
    read = chat.read(ids_of(tokenizer, "<muse>Where is c?</muse>open(c)"))
    assert (read.reasoning, read.action) == ("Where is c?", "open(c)")


def test_arguments_nested_too_deeply_for_the_template_are_an_error_of_ours():
    nested = []
    for _ in range(5000):
        nested = [nested]
    template = ChatFormat(
        tokenizer_for("{% for m in messages %}{{ m.content | tojson }}{{ eos_token }}{% endfor %}")
    )._template
    with pytest.raises(ConfigError, match="roles user"):
        template([{"role": "user", "content": nested}])
