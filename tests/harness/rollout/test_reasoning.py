"""Episodes of a model that thinks: what the environment gets, what is trained on, and thoughts that do not end."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from byte_tokenizer import byte_tokenizer
from transformers import PreTrainedTokenizerFast

import eh_gym
from eh_gym import FixedHorizon
from harness.policy.batch import pack
from harness.policy.chat import ChatFormat
from harness.rollout.conversation import UNFINISHED
from harness.rollout.episode_metrics import rollout_metrics
from harness.rollout.rollout import rollout
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sample, SampleRequest
from harness.types.trajectory import Trajectory

CHATML = (
    "{# replies may begin with <think>, up to </think> #}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(CHATML, ["<think>", "</think>"])


class Scripted:
    """A sampler that writes the given texts, one per request, each up to the request's limit."""

    max_context = 200_000

    def __init__(self, made: PreTrainedTokenizerFast, texts: list[str]) -> None:
        self.ids = [made.encode(text, add_special_tokens=False) for text in texts]
        self.requests: list[SampleRequest] = []
        self.waiting: list[SampleRequest] = []

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def submit(self, request: SampleRequest) -> None:
        self.requests.append(request)
        self.waiting.append(request)

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        request = self.waiting.pop()
        ids = self.ids[len(self.requests) - 1][: request.max_tokens]
        reason: Any = "stop" if ids[-1] in request.stop_ids else "length"
        return [(request, Sample(ids, [-1.0] * len(ids), reason, policy_version=0))]

    def end_session(self, session: Hashable) -> None:
        pass


def play(
    texts: list[str],
    *,
    horizon: int,
    mode: Any = "lockstep",
    strip: bool = False,
    max_context: int = 200_000,
    **rules: Any,
) -> tuple[Trajectory, Scripted, ChatFormat]:
    made = tokenizer()
    chat = ChatFormat(made, strip_reasoning=strip)
    sampler: Any = Scripted(made, texts)
    sampler.max_context = max_context
    envs = eh_gym.make_vec("EH-Cabinet-v0", 1, FixedHorizon(horizon), record=False, max_workers=0)
    request = EpisodeRequest(envs.envs[0].unwrapped.task_ids[0], 0, seed=1)  # type: ignore[attr-defined]
    [trajectory] = rollout(envs, sampler, chat, [request], Rules(mode=mode, **rules))
    envs.close()
    return trajectory, sampler, chat


def trained_text(trajectory: Trajectory, chat: ChatFormat) -> str:
    return chat.text([i for i, kept in zip(trajectory.ids, trajectory.action_mask, strict=True) if kept])


def test_the_environment_gets_the_answer_and_the_log_both() -> None:
    """A thought before a call was answered with "error"."""
    trajectory, _, chat = play(
        ["<think>\nlist() or read()?\n</think>\n\nlist()<|im_end|>", "list()<|im_end|>"], horizon=2
    )
    first, second = trajectory.turns
    assert (first.action, first.observation, first.malformed) == ("list()", "closed", False)
    assert first.reasoning == "list() or read()?"
    assert (second.action, second.reasoning, second.reasoning_tokens) == ("list()", "", 0)
    thought = chat.text(trajectory.ids[trajectory.action_mask.index(1) :][: first.reasoning_tokens])
    assert thought == "<think>\nlist() or read()?\n</think>"


@pytest.mark.parametrize("mode", ["lockstep", "streaming"])
def test_a_thought_that_never_ends_is_no_action_and_the_model_reads_so(mode: Any) -> None:
    trajectory, _, chat = play(["<think>\nopen(a)<|im_end|>", "list()<|im_end|>"], horizon=2, mode=mode)
    first = trajectory.turns[0]
    assert (first.action, first.reasoning, first.unfinished) == ("", "open(a)", True)
    assert first.observation == f"{UNFINISHED}\nerror"
    assert f"{UNFINISHED}\nerror<|im_end|>" in chat.text(trajectory.ids)
    assert rollout_metrics([trajectory], 0)["rollout/unfinished_reasoning"] == 0.5


@pytest.mark.parametrize("mode", ["lockstep", "streaming"])
def test_thoughts_that_leave_the_conversation_make_an_episode_several_sequences(mode: Any) -> None:
    texts = [
        "<think>a longer thought</think>list()<|im_end|>",
        "read()<|im_end|>",
        "<think>b</think>list()<|im_end|>",
        "<think>c</think>read()<|im_end|>",
    ]
    trajectory, _, chat = play(texts, horizon=4, mode=mode, strip=True)
    # A reply without a thought stays as it is, so that turns 2 and 3 are one sequence.
    first, second, third = trajectory.sequences
    starts = [sequence.action_mask.index(1) for sequence in (first, second, third)]
    prompt, answers = chat.text(first.ids[: starts[0]]), [turn.observation for turn in trajectory.turns]
    spoken = ["list()", "read()", "list()"]
    asked = [
        f"{said}<|im_end|>\n<|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n"
        for said, answer in zip(spoken, answers, strict=False)
    ]
    assert chat.text(first.ids) == prompt + texts[0]
    assert chat.text(second.ids) == prompt + asked[0] + asked[1] + texts[2]
    assert chat.text(third.ids) == prompt + "".join(asked) + texts[3]
    for sequence, written in ((first, texts[:1]), (second, texts[1:3]), (third, texts[3:])):
        sampled = [token for token, mask in zip(sequence.ids, sequence.action_mask, strict=True) if mask]
        assert chat.text(sampled) == "".join(written)
        assert sequence.logprobs == [-1.0 * mask for mask in sequence.action_mask]
    # Turn by turn: what is in front of a sequence, what was sampled, what was answered.
    turns = trajectory.turns
    assert [turn.prompt_tokens for turn in turns] == [0, starts[1], 0, starts[2]]
    assert [turn.observation_tokens > 0 for turn in turns] == [False, True, False, False]
    tokens = starts[0] + sum(turn.prompt_tokens + turn.action_tokens + turn.observation_tokens for turn in turns)
    assert tokens == trajectory.tokens == len(first.ids) + len(second.ids) + len(third.ids)
    assert trajectory.action_tokens == sum(turn.action_tokens for turn in turns)
    # A budget counts what was written and read, and each observation once.
    assert trajectory.spent_tokens == play(texts, horizon=4, mode=mode)[0].spent_tokens
    metrics = rollout_metrics([trajectory], 0)
    assert metrics["tokens/update"] == tokens
    assert metrics["rollout/prompt_tokens"] == tokens - trajectory.action_tokens


def test_the_loss_covers_what_was_written_in_every_sequence() -> None:
    texts = ["<think>a</think>list()<|im_end|>", "<think>b</think>read()<|im_end|>"]
    trajectory, _, chat = play(texts, horizon=2, strip=True)
    batch = pack(trajectory.sequences)
    assert chat.text(batch.targets.tolist()) == "".join(texts)
    # The system prompt and the first message are in the row once.
    assert batch.ids.shape[1] < trajectory.tokens - trajectory.sequences[0].action_mask.index(1) + 40


def test_a_context_that_is_full_counts_what_the_model_reads() -> None:
    texts = ["<think>" + 400 * "a" + "</think>list()<|im_end|>", "list()<|im_end|>"]
    prompt = play(["list()<|im_end|>"], horizon=1)[0].action_mask.index(1)
    kept, stripped = (
        play(texts, horizon=2, strip=strip, max_action_tokens=430, max_context=prompt + 430)[0]
        for strip in (False, True)
    )
    assert (kept.end, kept.length) == ("context", 1)
    assert (stripped.end, stripped.length) == ("horizon", 2)


def test_a_rollout_with_the_model_s_own_calls(bfcl_python: Path) -> None:
    """Calls as Qwen3 writes them, after a thought; results with the tool role; functions that are revealed are read as text."""
    trl = pytest.importorskip("trl")
    made = tokenizer()
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    chat = ChatFormat(made)
    task = "multi_turn_miss_func_0"
    teacher: Any = gym.make("EH-BFCL-v0", split="all", action_format="native", workers=1)
    teacher.reset(options={"task_id": task})
    texts, done = [], False
    while not done:
        action = teacher.unwrapped.expert()
        texts.append(
            "<think>\nNext one.\n</think>\n\n"
            + chat.text(chat.reply_ids(action)).removeprefix("<think>\n\n</think>\n\n")
        )
        _, _, done, _, _ = teacher.step(action)
    sampler: Any = Scripted(made, texts)
    envs = eh_gym.make_vec(
        "EH-BFCL-v0", 1, FixedHorizon(40), record=False, max_workers=0, split="all", action_format="native", workers=1
    )
    [trajectory] = rollout(envs, sampler, chat, [EpisodeRequest(task, 0, seed=1)], Rules())
    envs.close()
    assert (trajectory.success, trajectory.reward) == (True, 1.0)
    assert {turn.reasoning for turn in trajectory.turns} == {"Next one."}
    assert trained_text(trajectory, chat) == "".join(texts)
    text = chat.text(trajectory.ids)
    assert text.count("<tool_response>") >= text.count('<tool_call>\n{"name": "') - 1 > 3
    assert '<|im_start|>user\n{"name": "sort"' in text
    assert "# Tools" in text
    assert '"name": "ls"' in trajectory.system_prompt  # the log shows what was on offer
