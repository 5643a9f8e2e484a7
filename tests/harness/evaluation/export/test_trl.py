"""harness.export messages, read by TRL's own SFT trainer: it must train on the tokens that the episode had."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from byte_tokenizer import byte_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import eh_gym
from eh_gym import FixedHorizon
from harness.evaluation.folder import EvaluationFolder
from harness.export import main
from harness.policy.chat import ChatFormat
from harness.policy.installed import is_installed, model_folder
from harness.rollout.rollout import rollout
from harness.run.episode_log import read_episodes
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sample, SampleRequest

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


class Expert:
    """A sampler that writes what the environment's expert would, in the model's own form."""

    max_context = 200_000

    def __init__(self, chat: ChatFormat, actions: list[str]) -> None:
        self.replies = iter([chat.reply_ids(action) for action in actions])
        self.waiting: list[SampleRequest] = []

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def submit(self, request: SampleRequest) -> None:
        self.waiting.append(request)

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        ids = next(self.replies)
        return [(self.waiting.pop(), Sample(ids, [-1.0] * len(ids), "stop", policy_version=0))]

    def end_session(self, session: Hashable) -> None:
        pass


def play(folder: Path, chat: ChatFormat, env_id: str, tasks: list[str], **args: Any) -> None:
    """Keeps an episode of each task, played as the expert plays it."""
    teacher: Any = gym.make(env_id, **args)
    actions = []
    for task in tasks:
        teacher.reset(options={"task_id": task})
        done = False
        while not done:
            actions.append(teacher.unwrapped.expert())
            _, _, done, _, _ = teacher.step(actions[-1])
    teacher.close()
    envs = eh_gym.make_vec(env_id, 1, FixedHorizon(200), record=False, max_workers=0, **args)
    sampler: Any = Expert(chat, actions)
    requests = [EpisodeRequest(task, number, seed=number) for number, task in enumerate(tasks)]
    kept = EvaluationFolder(folder, {"env": env_id}, tokens=True)
    for trajectory in rollout(envs, sampler, chat, requests, Rules(max_action_tokens=10_000)):
        assert trajectory.success
        kept.add(trajectory)
    envs.close()
    kept.close()


def prepared(folder: Path, tokenizer: PreTrainedTokenizerFast, out: Path, **settings: Any) -> Any:
    """The training data that TRL's SFT trainer makes of the exported conversations."""
    main(["messages", str(folder), "--out", str(out / "messages.jsonl")])
    data = datasets.load_dataset("json", data_files=str(out / "messages.jsonl"), split="train", cache_dir=str(out))
    settings |= {"gradient_checkpointing": None}  # off, without the warning that transformers 5.23 has for False
    args = trl.SFTConfig(
        str(out), max_length=None, report_to=[], use_cpu=True, bf16=False, shuffle_dataset=False, **settings
    )
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **SMALL))
    return trl.SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer).train_dataset


def test_calls_and_results_become_the_tokens_and_the_mask_of_the_episode(bfcl_python: Path, tmp_path: Path) -> None:
    """EH-BFCL in the native format with Qwen2.5's template; in one task a function is revealed on the way."""
    tokenizer = byte_tokenizer((Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text("utf-8"))
    tasks = ["multi_turn_base_0", "multi_turn_miss_func_0", "multi_turn_base_120"]
    args = {"split": "all", "action_format": "native", "prompt": "official", "workers": 1}
    play(tmp_path / "kept", ChatFormat(tokenizer), "EH-BFCL-v0", tasks, **args)
    made = prepared(tmp_path / "kept", tokenizer, tmp_path, assistant_only_loss=True)
    [newline] = tokenizer.encode("\n", add_special_tokens=False)
    for row, line in zip(made, sequences(tmp_path / "kept"), strict=True):
        end = len(line["ids"])
        assert row["input_ids"][:end] == line["ids"]
        assert tokenizer.decode(row["input_ids"][end:]) == "\n"  # the template's, after the last message
        ours = {at for at, written in enumerate(line["action_mask"]) if written}
        theirs = {at for at, label in enumerate(row["labels"][:end]) if label != -100}
        # TRL's template for training also counts the newlines that the template writes around what the model wrote.
        assert ours < theirs
        assert all(line["ids"][at] == newline and {at - 1, at + 1} & ours for at in theirs - ours)


def test_a_conversation_becomes_the_tokens_of_the_episode_in_a_real_chat_model(tmp_path: Path) -> None:
    """EH-Cabinet with SmolLM2's own tokenizer and template."""
    if not is_installed("smollm2-135m"):
        command = "python -m harness.models install smollm2-135m"
        assert not os.environ.get("EH_REQUIRE_BACKENDS"), f"the model is not installed; run: {command}"
        pytest.skip(f"the model is not installed: {command}")
    tokenizer = AutoTokenizer.from_pretrained(model_folder("smollm2-135m"))
    tasks = list(itertools.islice(gym.make("EH-Cabinet-v0").unwrapped.task_ids, 3))  # type: ignore[attr-defined]
    play(tmp_path / "kept", ChatFormat(tokenizer), "EH-Cabinet-v0", tasks)
    made = prepared(tmp_path / "kept", tokenizer, tmp_path)
    for row, line in zip(made, sequences(tmp_path / "kept"), strict=True):
        end = len(line["ids"])
        assert row["input_ids"][:end] == line["ids"]
        assert tokenizer.decode(row["input_ids"][end:]) == "\n"


def sequences(folder: Path) -> list[dict[str, Any]]:
    """The ids and the mask of each episode in the log; without stripped thoughts it is one sequence."""
    return [
        sequence for line in read_episodes(folder / "episodes" / "evaluation.jsonl") for sequence in line["sequences"]
    ]
