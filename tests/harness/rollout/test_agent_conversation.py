"""What the model reads of an agent's requests: the longest known conversation goes on in its own tokens."""

from unittest.mock import Mock

from byte_tokenizer import byte_tokenizer

from harness.agents.protocol import ModelCall
from harness.chat.chat import ChatFormat
from harness.chat.messages import MessageFormat
from harness.rollout.agent_conversation import AgentConversation, _Known
from harness.settings.rollout import Rollout
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory

# It takes a result only in a whole conversation.
TEMPLATE = (
    "{% if messages|length == 4 and messages[2].role == 'tool' %}{{ raise_exception('a result') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def test_a_conversation_whose_end_the_template_refuses_is_read_as_a_whole():
    made = byte_tokenizer(TEMPLATE)
    messages = [{"role": "user", "content": "start"}]
    t = Trajectory("x", 0)
    begun = {"call": ModelCall(messages), "agent_program": Mock()}
    conversation = AgentConversation(ChatFormat(made), 10_000, t, begun, Rollout())
    for text in (" one", " two"):
        ids = made.encode(f"{text}<|im_end|>")
        turn, _ = conversation.act(Sample(ids, [0.0] * len(ids), "stop", 0))
        t.turns.append(turn)
        before = list(t.ids)
        messages = [*messages, {"role": "assistant", "content": text.strip()}, {"role": "user", "content": "on"}]
        conversation.answered({"call": ModelCall(messages)})
        assert t.ids[: len(before)] == before, "with the blanks that the agent has stripped"
    messages.insert(-1, {"role": "tool", "tool_call_id": "a", "content": "x"})
    conversation.answered({"call": ModelCall(messages)})
    assert made.decode(t.ids) == made.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_the_ids_of_its_calls_say_which_branch_an_agent_continues(monkeypatch):
    monkeypatch.setattr(MessageFormat, "following_ids", lambda _, reply, new, **__: [reply, *new])
    conversation = AgentConversation.__new__(AgentConversation)
    conversation._chat, conversation._known = Mock(), []
    branches, tools = [], [{"type": "function", "function": {"name": "open"}}]
    for number in range(2):
        call = {"id": f"call{number}", "type": "function", "function": {"name": "open", "arguments": {}}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        start = [{"role": "system", "content": "rules"}, {"role": "user", "content": "start"}]
        conversation._known.append(_Known([*start, said], tools, [number], True))
        branches.append([*start, said, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}])
    for number, branch in enumerate(branches):
        assert conversation._of_call(ModelCall(branch, tools))[0] == [number, *branch[2:]]
