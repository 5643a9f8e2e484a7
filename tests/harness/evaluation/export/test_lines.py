"""harness.export messages and tokens: what the model saw and wrote, as others' trainers read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.evaluate import Evaluation, run
from harness.evaluation.export.lines import conversation, tokens_of, write_lines
from harness.export import main
from harness.policy.policy import Policy
from harness.run.episode_log import read_episodes, write_episodes
from harness.types.trajectory import Trajectory, Turn

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of random actions, some of which succeed within K."""
    out = tmp_path_factory.mktemp("export") / "evaluation"
    run(Evaluation(policy="expert", tasks=12, horizon=9, out=out), QUIET)
    return out


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_conversation_alternates_and_ends_with_the_model(folder: Path, tmp_path: Path) -> None:
    main(["messages", str(folder), "--out", str(tmp_path / "all.jsonl")])
    logged, exported = read_episodes(folder / "episodes" / "evaluation.jsonl"), rows(tmp_path / "all.jsonl")
    assert len(exported) == len(logged) == 12
    for line, row in zip(logged, exported, strict=True):
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["system"] + ["user", "assistant"] * line["length"]
        said = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert said == [turn["action"] for turn in line["turns"]]
        heard = [message["content"] for message in row["messages"] if message["role"] == "user"]
        assert heard == [line["prompt"], *(turn["observation"] for turn in line["turns"][:-1])]
        assert (row["task_id"], row["reward"], row["success"]) == (line["task_id"], line["reward"], line["success"])


def test_failures_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    main(["messages", str(folder), "--out", str(tmp_path / "good.jsonl"), "--successes-only"])
    good = rows(tmp_path / "good.jsonl")
    assert 0 < len(good) < 12
    assert all(row["success"] and row["reward"] == 1.0 for row in good)


def test_an_evaluation_that_is_kept_in_another_ones_folder_does_not_hide_it(tmp_path: Path) -> None:
    """The message named the folder that was given, and bfcl called itself without an end."""
    for out in (tmp_path / "one", tmp_path / "one" / "two"):
        run(Evaluation(policy="expert", tasks=1, out=out), QUIET)
    main(["messages", str(tmp_path / "one"), "--out", str(tmp_path / "one.jsonl")])
    assert len(rows(tmp_path / "one.jsonl")) == 1


def test_a_thought_has_a_field_of_its_own() -> None:
    turn = {"action": "<think>\nhm\n</think>\n\nopen(a)", "observation": "ok"}
    line = {"prompt": "start a", "turns": [turn, {"action": "read()", "observation": "", "reasoning": "so"}]}
    about = dict.fromkeys(("task_id", "seed", "reward", "success", "end", "advantage"))
    assert conversation({**line, **about}, "")[0]["messages"] == [
        {"role": "user", "content": "start a"},
        {"role": "assistant", "content": "open(a)", "reasoning_content": "hm"},
        {"role": "user", "content": "ok"},
        {"role": "assistant", "content": "read()", "reasoning_content": "so"},
    ]


def test_calls_have_columns_of_their_own() -> None:
    """As a model on this machine writes them, and as an endpoint gives them: with ids, and the arguments as text."""
    tool = {"type": "function", "function": {"name": "cd", "parameters": {}}}
    new = {"type": "function", "function": {"name": "pwd", "parameters": {}}}
    here = {"role": "assistant", "content": "So.", "tool_calls": [{"function": {"name": "cd", "arguments": {"a": 1}}}]}
    call = {"id": "x1", "type": "function", "function": {"name": "cd", "arguments": '{"a": 1}'}}
    broken = {"id": "x2", "type": "function", "function": {"name": "cd", "arguments": "{"}}
    turns = [
        {"action": json.dumps(here), "observation": "in a", "results": ["in a"], "reasoning": "hm"},
        {"action": json.dumps({"content": "", "tool_calls": [call, call]}), "observation": "", "results": ["b", "c"]},
        {"action": json.dumps({"content": "", "tool_calls": [broken]}), "observation": "More.", "new_tools": [new]},
        {"action": json.dumps({"content": "Done."}), "observation": ""},
        {"action": "[1]", "observation": ""},
    ]
    about = dict.fromkeys(("task_id", "seed", "reward", "success", "end", "advantage"))
    made = conversation({"prompt": "go", "turns": turns, **about}, "", [tool])[0]
    assert json.loads(made["tools"]) == [tool]
    named = {"type": "function", "function": {"name": "cd", "arguments": {"a": 1}}}
    first = {
        "role": "assistant",
        "content": "So.",
        "tool_calls": [{"id": "call00000", **named}],
        "reasoning_content": "hm",
    }
    result = {"role": "tool", "name": "cd", "tool_call_id": "call00000", "content": "in a"}
    assert made["messages"][:3] == [{"role": "user", "content": "go"}, first, result]
    assert made["messages"][3]["tool_calls"] == [{"id": "x1", **named}] * 2
    assert [m["content"] for m in made["messages"] if m["role"] == "tool"] == ["in a", "b", "c"]
    assert made["messages"][6]["tool_calls"] == [broken]  # what is no JSON stays as it was
    assert made["messages"][7] == {"role": "user", "content": json.dumps(new["function"]) + "\nMore."}
    assert [m["content"] for m in made["messages"][8::2]] == ["Done.", "[1]"]


def test_tokens_are_those_that_were_sampled(trained: Policy, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    settings: dict[str, Any] = {"policy": str(tmp_path / "model"), "tasks": 2, "rollouts": 2, "max_action_tokens": 6}
    run(Evaluation(**settings, horizon=6, out=tmp_path / "evaluation", keep_tokens=True), QUIET)
    main(["tokens", str(tmp_path / "evaluation"), "--out", str(tmp_path / "tokens.jsonl")])
    logged = read_episodes(tmp_path / "evaluation" / "episodes" / "evaluation.jsonl")
    for line, row in zip(logged, rows(tmp_path / "tokens.jsonl"), strict=True):
        assert len(row["input_ids"]) == len(row["action_mask"]) == len(row["logprobs"]) == line["tokens"]
        assert sum(row["action_mask"]) == line["action_tokens"]
        start = line["prompt_tokens"]
        first = row["input_ids"][start : start + line["turns"][0]["action_tokens"]]
        assert trained.chat.read(first).action == line["turns"][0]["action"]
        assert all((p != 0.0) <= bool(m) for p, m in zip(row["logprobs"], row["action_mask"], strict=True))


def test_without_kept_tokens_the_flag_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token ids"):
        write_lines(folder, tmp_path / "tokens.jsonl", tokens_of)
    assert not list(tmp_path.iterdir())


def test_the_log_of_a_run_is_read_too(tmp_path: Path) -> None:
    played = Trajectory("t", 0, system_prompt="s", prompt="p", turns=[Turn("a", "o", cut=False, malformed=False)])
    lost = Trajectory("t", 0, end="environment-error", turns=played.turns)
    for update in (0, 1):
        write_episodes(tmp_path / "run" / "episodes", update, [played, lost], [(played, 0.5)])
    out = tmp_path / "run" / "out.jsonl"
    for _ in range(2):  # over an export of its own, even in that folder
        assert write_lines(tmp_path / "run", out, conversation) == 2
    assert [row["advantage"] for row in rows(out)] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["messages", "{empty}", "--out", "{empty}/x.jsonl"], "no episodes"),
        (["messages", "{folder}", "--out", "{empty}"], "must be a file"),
        (["messages", "{folder}", "--out", "{folder}/episodes/evaluation.jsonl"], "write over"),
        (["messages", "{folder}", "--out", "{empty}/x", "--rollout", "1"], "--rollout"),
        (["bfcl", "{folder}", "--out", "{empty}/x"], "EH-BFCL"),
        (["appworld", "{folder}", "--out", "{empty}/x", "--name", "A b"], "lower-case"),
    ],
)
def test_a_wrong_folder_ends_with_one_line(
    words: list[str], names: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([word.format(empty=tmp_path, folder=folder) for word in words])
    assert exit_.value.code == 2
    assert names in capsys.readouterr().out.replace("\n", " ")
