"""What the model reads of an agent's requests: the longest known conversation goes on in its own tokens."""

from typing import Any

from byte_tokenizer import byte_tokenizer

from harness.agents.protocol import ModelCall
from harness.chat.chat import ChatFormat
from harness.rollout.agent_conversation import AgentConversation
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn

# It takes a result only in a whole conversation.
TEMPLATE = (
    "{% if messages|length == 4 and messages[2].role == 'tool' %}{{ raise_exception('a result') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def test_a_conversation_whose_end_the_template_refuses_is_read_as_a_whole() -> None:
    made = byte_tokenizer(TEMPLATE)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "start"}]
    conversation = AgentConversation(ChatFormat(made), ModelCall(messages))
    t = Trajectory("x", 0, ids=list(conversation.prompt_ids))
    for text in (" one", " two"):
        sample = Sample(made.encode(f"{text}<|im_end|>"), [], "stop", 0)
        begin, t.ids = len(t.ids), t.ids + sample.ids
        t.turns.append(Turn(text, "", cut=False, malformed=False))
        conversation.action(t, begin, conversation.read(sample.ids), sample)
        messages = [*messages, {"role": "assistant", "content": text.strip()}, {"role": "user", "content": "on"}]
        read = conversation.answered(t.ids, t.turns[-1], {"call": ModelCall(messages)}, stopped=True)
        assert read[: len(t.ids)] == t.ids, "with the blanks that the agent has stripped"
        t.ids = read
    messages.insert(-1, {"role": "tool", "tool_call_id": "a", "content": "x"})
    read = conversation.ids(ModelCall(messages))[0]
    assert made.decode(read) == made.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
