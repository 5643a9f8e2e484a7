"""Growing conversations: what is tokenised once stays, whatever the template."""

from __future__ import annotations

import pytest
from byte_tokenizer import byte_tokenizer
from transformers import PreTrainedTokenizerFast

from eh_gym.errors import ConfigError
from harness.policy.chat import ChatFormat
from harness.policy.messages import MessageFormat

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
TINY = (
    "{# no system prompt #}"
    "{% for m in messages %}{% if m.role == 'user' %}<obs>{{ m.content }}<act>"
    "{% elif m.role == 'assistant' %}{{ m.content }}<eos>{% endif %}{% endfor %}"
)
END = {"chatml": "<|im_end|>", "llama3": "<|eot|>", "tiny": "<eos>"}
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "tiny": TINY}
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<obs>",
    "<act>",
    "<eos>",
    "<end>",
]


def tokenizer(template: str | None, eos: str | None = "<end>") -> PreTrainedTokenizerFast:
    return byte_tokenizer(template, control=SPECIAL, eos_token=eos)


def message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_reply_ends_with_the_templates_own_end(name: str) -> None:
    t = tokenizer(TEMPLATES[name])
    chat = ChatFormat(t)
    end, eos = t.convert_tokens_to_ids(END[name]), t.convert_tokens_to_ids("<end>")
    assert chat.stop_ids == {end, eos}
    reply = chat.reply_ids("open(a)")
    assert reply[-1] == end
    assert chat.read(reply).action == "open(a)"
    assert chat.read(reply[:-1]).action == "open(a)"  # cut off before its end


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_reply_that_was_cut_off_gets_its_end_from_the_template(name: str) -> None:
    chat = ChatFormat(tokenizer(TEMPLATES[name]))
    stopped, cut = chat.observation_ids("ok", stopped=True), chat.observation_ids("ok", stopped=False)
    assert cut[1:] == stopped
    assert cut[0] in chat.stop_ids


def test_a_blank_before_the_template_s_end_is_no_second_end() -> None:
    """Llama 2's template writes one. The reply has its own end already, and got another."""
    template = TINY.replace("{{ m.content }}<eos>", "{{ ' ' + m.content.strip() + ' <end>' }}")
    chat = ChatFormat(tokenizer(template))
    reply = chat.prompt_ids("", "q") + chat.reply_ids(" a ")
    assert chat.text(reply + chat.observation_ids("ok", stopped=True)) == "<obs>q<act> a <end><obs>ok<act>"
    assert chat.text(chat.observation_ids("ok", stopped=False)) == " <end><obs>ok<act>"


def test_a_long_observation_loses_its_middle_and_says_so() -> None:
    t = tokenizer(CHATML)
    chat = ChatFormat(t, max_observation_tokens=20)
    text = " ".join(str(i) for i in range(200))
    n = len(t.encode(text, add_special_tokens=False))
    shown = chat.text(chat.observation_ids(text, stopped=True))
    assert f"[{n - 20} tokens left out]" in shown
    assert shown.index("0 1 2") < shown.index("left out") < shown.index("199")
    assert chat.observation_ids("ok", stopped=True) == ChatFormat(t).observation_ids("ok", stopped=True)
    asked = MessageFormat(chat, []).following_ids({"role": "assistant", "content": "a"}, [message(text)], stopped=True)
    assert chat.text(asked) == shown  # an agent's was cut twice


def test_of_a_huge_observation_only_the_ends_are_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    t = tokenizer(CHATML)
    text = " ".join(str(i) for i in range(20_000))
    exact = ChatFormat(t, max_observation_tokens=len(text) // 128 + 16)
    limit = len(text) // 128 - 1
    chat = ChatFormat(t, max_observation_tokens=limit)
    tokenised: list[int] = []
    encode = t.encode
    monkeypatch.setattr(t, "encode", lambda text, **more: tokenised.append(len(text)) or encode(text, **more))
    shown = chat.cut(text)
    assert max(tokenised) <= 64 * limit
    head, note, tail = shown.split("\n")
    ids = t.encode(text, add_special_tokens=False)
    assert (head, tail) == (t.decode(ids[: limit // 2]), t.decode(ids[-(limit // 2) :]))
    assert note == f"[{len(text) - len(head) - len(tail)} characters left out]"
    assert "tokens left out" in exact.cut(text)


def test_half_a_surrogate_pair_is_read_as_its_escape() -> None:
    t = tokenizer(CHATML)
    chat = ChatFormat(t, max_observation_tokens=64)
    assert chat.prompt_ids("a\ud83d", "b\ude42") == chat.prompt_ids(r"a\ud83d", r"b\ude42")
    assert chat.observation_ids("\ud83d" * 99, stopped=True) == chat.observation_ids(r"\ud83d" * 99, stopped=True)
    assert chat.messages_ids([message("\ud83d")]) == chat.messages_ids([message(r"\ud83d")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            "does not keep the messages",
        ),
        ("{{ messages[-1].content }}", "does not keep the messages"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "does not keep the messages"),
    ],
)
def test_unusable_templates_are_refused(template: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatFormat(tokenizer(template))


def test_a_template_without_an_end_needs_an_eos_token() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert ChatFormat(tokenizer(plain)).stop_ids
    with pytest.raises(ConfigError, match="no eos_token"):
        ChatFormat(tokenizer(plain, eos=None))


def test_a_tiny_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_observation_tokens"):
        ChatFormat(tokenizer(CHATML), max_observation_tokens=3)
