"""Episodes of a model that thinks: what the environment gets, what is trained on, and thoughts that do not end."""

from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest
from byte_tokenizer import byte_tokenizer

import eh_gym
from eh_gym import FixedHorizon
from harness.chat.chat import ChatFormat
from harness.rollout.conversation import UNFINISHED, EnvironmentConversation
from harness.rollout.episode_metrics import rollout_metrics
from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory

CHATML = (
    "{# replies may begin with <think>, up to </think> #}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    return byte_tokenizer(CHATML, ["<think>", "</think>"])


def writes(fake, made, texts):
    left = iter(texts)

    def write(request):
        ids = made.encode(next(left), add_special_tokens=False)[: request.max_tokens]
        return Sample(ids, [-1.0] * len(ids), "stop" if ids[-1] in request.stop_ids else "length", policy_version=0)

    return fake.Player(write)


def play(fake, texts, mode="lockstep"):
    made = tokenizer()
    chat = ChatFormat(made)
    envs = eh_gym.make_vec("EH-Cabinet-v0", 1, FixedHorizon(2), record=False, max_workers=0)
    request = EpisodeRequest(envs.envs[0].unwrapped.task_ids[0], 0, seed=1)
    [trajectory] = rollout(envs, writes(fake, made, texts), chat, [request], Rollout(rollout=mode))
    envs.close()
    return trajectory, chat


def test_the_environment_gets_the_answer_and_the_log_both(fake):
    texts = ["<think>\nlist() or read()?\n</think>\n\nlist()<|im_end|>", "list()<|im_end|>"]
    trajectory, chat = play(fake, texts)
    first, second = trajectory.turns
    assert (first.action, first.observation, first.malformed) == ("list()", "closed", False)
    assert first.reasoning == "list() or read()?"
    assert first.action_tokens + second.action_tokens == trajectory.action_tokens
    assert (second.action, second.reasoning, second.reasoning_tokens) == ("list()", "", 0)
    thought = chat.text(trajectory.ids[trajectory.action_mask.index(1) :][: first.reasoning_tokens])
    assert thought == "<think>\nlist() or read()?\n</think>"


@pytest.mark.parametrize("mode", ["lockstep", "streaming"])
def test_a_thought_that_never_ends_is_no_action_and_the_model_reads_so(fake, mode):
    trajectory, chat = play(fake, ["<think>\nopen(a)<|im_end|>", "list()<|im_end|>"], mode)
    first = trajectory.turns[0]
    assert (first.action, first.reasoning, first.unfinished) == ("", "open(a)", True)
    assert first.observation == f"{UNFINISHED}\nerror"
    assert f"{UNFINISHED}\nerror<|im_end|>" in chat.text(trajectory.ids)
    assert rollout_metrics([trajectory], 0)["rollout/unfinished_reasoning"] == 0.5


def test_functions_that_come_later_are_read_once_and_in_their_own_letters(fake):
    trajectory = Trajectory("x", 0, prompt="start")
    conversation = EnvironmentConversation(fake.Chat(), 1000, trajectory, {"tools": []}, Rollout())
    for seen in ('{"name": "öffne"}\nclosed', "closed"):
        turn, _ = conversation.act(Sample([7], [0.0], "stop", 0))
        trajectory.turns.append(replace(turn, observation="closed"))
        written = len(trajectory.ids)
        conversation.answered({"tools": [{"function": {"name": "öffne"}}]})
        assert trajectory.turns[-1].observation == seen
        assert trajectory.ids[written:] == list(seen.encode())


def test_a_rollout_with_the_model_s_own_calls(fake, bfcl_python):
    trl = pytest.importorskip("trl")
    made = tokenizer()
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    chat = ChatFormat(made)
    task = "multi_turn_miss_func_0"
    teacher = gym.make("EH-BFCL-v0", split="all", action_format="native", workers=1)
    teacher.reset(options={"task_id": task})
    texts, done = [], False
    while not done:
        action = teacher.unwrapped.expert()
        texts.append(
            "<think>\nNext one.\n</think>\n\n"
            + chat.text(chat.reply_ids(action)).removeprefix("<think>\n\n</think>\n\n")
        )
        _, _, done, _, _ = teacher.step(action)
    envs = eh_gym.make_vec(
        "EH-BFCL-v0", 1, FixedHorizon(40), record=False, max_workers=0, split="all", action_format="native", workers=1
    )
    [trajectory] = rollout(envs, writes(fake, made, texts), chat, [EpisodeRequest(task, 0, seed=1)], Rollout())
    envs.close()
    assert (trajectory.success, trajectory.reward) == (True, 1.0)
    assert {turn.reasoning for turn in trajectory.turns} == {"Next one."}
    written = [i for i, kept in zip(trajectory.ids, trajectory.action_mask, strict=True) if kept]
    assert chat.text(written) == "".join(texts)
    text = chat.text(trajectory.ids)
    assert text.count("<tool_response>") >= text.count('<tool_call>\n{"name": "') - 1 > 3
    assert '<|im_start|>user\n{"name": "sort"' in text
    assert "# Tools" in text
    assert '"name": "ls"' in trajectory.system_prompt  # the log shows what was on offer
