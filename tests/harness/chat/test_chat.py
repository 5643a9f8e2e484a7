import pytest
from byte_tokenizer import CHATML, byte_tokenizer

from eh_gym.errors import ConfigError
from harness.chat.chat import ChatFormat
from harness.chat.messages import MessageFormat
from harness.settings.model import Model

TINY = (
    "{# no system prompt #}"
    "{% for m in messages %}{% if m.role == 'user' %}<obs>{{ m.content }}<act>"
    "{% elif m.role == 'assistant' %}{{ m.content }}<eos>{% endif %}{% endfor %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<obs>", "<act>", "<eos>", "<end>"]


def tokenizer(template, eos="<end>"):
    return byte_tokenizer(template, control=SPECIAL, eos_token=eos)


def message(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(("template", "ending"), [(CHATML, "<|im_end|>"), (TINY, "<eos>")], ids=["chatml", "tiny"])
def test_a_reply_ends_with_the_template_s_own_end_also_if_it_was_cut_off(template, ending):
    t = tokenizer(template)
    chat = ChatFormat(t)
    end, eos = t.convert_tokens_to_ids(ending), t.convert_tokens_to_ids("<end>")
    assert chat.stop_ids == {end, eos}
    reply = chat.reply_ids("open(a)")
    assert reply[-1] == end
    assert chat.read(reply).action == "open(a)"
    assert chat.read(reply[:-1]).action == "open(a)"  # cut off before its end
    stopped, cut = chat.observation_ids("ok", stopped=True), chat.observation_ids("ok", stopped=False)
    assert cut[1:] == stopped
    assert cut[0] in chat.stop_ids


def test_a_long_observation_loses_its_middle_and_says_so():
    t = tokenizer(CHATML)
    chat = ChatFormat(t, Model(max_observation_tokens=20))
    text = " ".join(str(i) for i in range(200))
    n = len(t.encode(text, add_special_tokens=False))
    shown = chat.text(chat.observation_ids(text, stopped=True))
    assert f"[{n - 20} tokens left out]" in shown
    assert shown.index("0 1 2") < shown.index("left out") < shown.index("199")
    assert chat.observation_ids("ok", stopped=True) == ChatFormat(t).observation_ids("ok", stopped=True)
    asked = MessageFormat(chat, []).following_ids({"role": "assistant", "content": "a"}, [message(text)], stopped=True)
    assert chat.text(asked) == shown  # an agent's was cut twice


def test_half_a_surrogate_pair_is_read_as_its_escape():
    t = tokenizer(CHATML)
    chat = ChatFormat(t, Model(max_observation_tokens=64))
    assert chat.prompt_ids("a\ud83d", "b\ude42") == chat.prompt_ids(r"a\ud83d", r"b\ude42")
    assert chat.observation_ids("\ud83d" * 99, stopped=True) == chat.observation_ids(r"\ud83d" * 99, stopped=True)
    assert chat.messages_ids([message("\ud83d")]) == chat.messages_ids([message(r"\ud83d")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "does not keep the messages"),
    ],
)
def test_unusable_templates_are_refused(template, message):
    with pytest.raises(ConfigError, match=message):
        ChatFormat(tokenizer(template))
