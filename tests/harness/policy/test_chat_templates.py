"""Conversations in the styles of Qwen2.5, Qwen3 and Llama 3: growing ids, and what each template would do to them.

The templates are reductions of the models' own, written anew: what they do to system prompts, thinking, blanks, dates and
the beginning of a text is kept, tools are left out. Each stands in a tokenizer folder on disk with a small BPE vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from harness.policy.chat import ChatFormat

# Qwen2.5: a system prompt of its own where none is given; nothing else is touched.
QWEN25 = (
    "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}{% endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen3: no system prompt of its own; replies before the last question lose their thinking, the last one gets it back,
# empty if it had none; `enable_thinking=false` begins the reply with an empty thought.
QWEN3 = (
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set words = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}"
    "{{- words + '<|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{%- endif %}"
)
# Llama 3: the text's beginning is written by the template; 3.2 adds a date, today's unless one is given; blanks are trimmed.
LLAMA3 = (
    "{{- bos_token }}"
    "{%- if date_string is not defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}"
    "{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' + system + '<|eot_id|>' }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
CHATML_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
LLAMA_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
STYLES: dict[str, dict[str, Any]] = {
    "qwen2.5": {"template": QWEN25, "special": CHATML_SPECIAL, "eos": "<|im_end|>", "end": "<|im_end|>"},
    "qwen3": {"template": QWEN3, "special": CHATML_SPECIAL, "eos": "<|im_end|>", "end": "<|im_end|>"},
    "llama3": {
        "template": LLAMA3,
        "special": LLAMA_SPECIAL,
        "eos": "<|end_of_text|>",
        "end": "<|eot_id|>",
        "bos": "<|begin_of_text|>",
    },
}
ALL = pytest.mark.parametrize("style", STYLES)
THOUGHT = "<think>\nthe file is open\n</think>\n\nread()"


def load(style: str, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of one style, from a folder written here."""
    about = STYLES[style]
    bpe = Tokenizer(models.BPE())
    # Line ends are words of their own, as in both families: a prompt that ends with one keeps its tokens, whatever follows.
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=about["special"],
        show_progress=False,
    )
    bpe.train_from_iterator(["system user assistant open(a) read() the file is open\n\n"] * 9, trainer)
    bos = about.get("bos")
    if bos is not None:  # as Llama's: whoever encodes with special tokens gets a second beginning
        ids = [(bos, bpe.token_to_id(bos))]
        bpe.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=ids)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=about["eos"], bos_token=bos)
    fast.chat_template = about["template"]
    fast.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def chats(tmp_path: Path) -> Any:
    return lambda style: ChatFormat(load(style, tmp_path / style))


def whole(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    """The ids of a conversation that the template renders at once."""
    text = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, date_string="26 Jul 2024"
    )
    return list(tokenizer.encode(str(text), add_special_tokens=False))


@ALL
@pytest.mark.parametrize("system", ["be good", ""])
def test_a_growing_conversation_is_a_prefix_of_the_next_and_the_template_s_own(
    style: str, system: str, tmp_path: Path
) -> None:
    tokenizer = load(style, tmp_path)
    chat = ChatFormat(tokenizer)
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": "start c"}]
    ids = chat.prompt_ids(system, "start c")
    assert ids == whole(tokenizer, messages)
    for reply, observation in (("open(a)", "ok"), ("read()", "next\nf"), ("read()", "Zoë: 🙂")):
        before = list(ids)
        ids = ids + chat.reply_ids(reply) + chat.observation_ids(observation, stopped=True)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
        assert ids[: len(before)] == before
        assert ids == whole(tokenizer, messages)


@ALL
def test_a_reply_ends_at_the_template_s_end_or_the_tokenizer_s(style: str, tmp_path: Path) -> None:
    tokenizer = load(style, tmp_path)
    chat = ChatFormat(tokenizer)
    end, eos = (tokenizer.convert_tokens_to_ids(STYLES[style][name]) for name in ("end", "eos"))
    assert chat.stop_ids == {end, eos}
    assert chat.reply_ids("open(a)")[-1] == end
    assert chat.observation_ids("ok", stopped=False)[0] == end


@ALL
def test_thinking_stays_in_the_growing_conversation(style: str, tmp_path: Path) -> None:
    """The template may drop it from earlier replies; what was sampled, and will be trained, does not change."""
    tokenizer = load(style, tmp_path)
    chat = ChatFormat(tokenizer)
    ids = chat.prompt_ids("", "start c")
    reply = chat.reply_ids(THOUGHT)
    grown = ids + reply + chat.observation_ids("ok", stopped=True)
    assert grown[len(ids) : len(ids) + len(reply)] == reply
    messages = [{"role": "user", "content": "start c"}, {"role": "assistant", "content": THOUGHT}]
    rendered = whole(tokenizer, [*messages, {"role": "user", "content": "ok"}])
    assert (grown == rendered) == (style != "qwen3")
    assert ("the file is open" in tokenizer.decode(rendered)) == (style != "qwen3")
    assert "the file is open" in chat.text(grown)


@pytest.mark.parametrize(
    ("style", "found"),
    [
        ("qwen2.5", []),
        ("qwen3", ["strips the thinking of earlier replies"]),
        ("llama3", ["strips blanks around messages"]),
    ],
)
def test_what_a_template_would_do_to_earlier_replies_is_said(chats: Any, style: str, found: list[str]) -> None:
    notes = chats(style).notes
    assert len(notes) == len(found)
    for note, words in zip(notes, found, strict=True):
        assert words in note


def test_a_default_system_prompt_stands_once(chats: Any) -> None:
    chat = chats("qwen2.5")
    ids = chat.prompt_ids("", "start c") + chat.reply_ids("read()") + chat.observation_ids("ok", stopped=True)
    assert chat.text(ids).count("You are Qwen.") == 1
    assert "You are Qwen." not in chat.text(chat.prompt_ids("be good", "start c"))


def test_a_text_begins_once_and_its_date_does_not_move(chats: Any) -> None:
    chat = chats("llama3")
    ids = chat.prompt_ids("be good", "start c") + chat.reply_ids("read()") + chat.observation_ids("ok", stopped=True)
    text = chat.text(ids)
    assert text.startswith("<|begin_of_text|>")
    assert text.count("<|begin_of_text|>") == 1
    assert text.count("Today Date: 26 Jul 2024") == 1  # today's would give another run's metrics tomorrow


def test_a_reply_that_begins_in_an_empty_thought_grows_too(tmp_path: Path) -> None:
    """As Qwen3's template does without thinking: the piece belongs to the prompt, at every turn."""
    tokenizer = load("qwen3", tmp_path)
    tokenizer.chat_template = "{%- set enable_thinking = false %}" + QWEN3
    chat = ChatFormat(tokenizer)
    ids = chat.prompt_ids("", "start c") + chat.reply_ids("read()") + chat.observation_ids("ok", stopped=True)
    assert chat.text(ids).count("<think>\n\n</think>\n\n") == 2
    assert chat.text(ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@ALL
def test_a_long_observation_keeps_its_first_and_last_tokens(style: str, tmp_path: Path) -> None:
    tokenizer = load(style, tmp_path)
    chat = ChatFormat(tokenizer, max_observation_tokens=16)
    text = "a" + "🙂" * 40 + "b"  # four tokens each: both cuts fall inside one
    ids = tokenizer.encode(text, add_special_tokens=False)
    for shown in (
        chat.text(chat.observation_ids(text, stopped=True)),
        chat.text(chat.prompt_ids("", text)),
    ):
        assert f"[{len(ids) - 16} tokens left out]" in shown
        assert "\ufffd" not in shown
        head, tail = (tokenizer.decode(part).count("🙂") for part in (ids[:8], ids[-8:]))
        assert shown.count("🙂") == head + tail
