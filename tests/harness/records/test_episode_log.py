import itertools

import pytest

from eh_gym.errors import StateError
from harness.records.episode_log import (
    EpisodeWriter,
    episode_files,
    read_episodes,
    read_system_prompt,
    write_episodes,
)
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn


def played(*, reward=1.0, system_prompt="rules"):
    t = Trajectory("task", 0, horizon=9, reward=reward, success=reward == 1.0, system_prompt=system_prompt, prompt="go")
    t.add_prompt([1, 2, 3])
    t.add_sample(Sample([4, 5], [-0.1] * 2, "stop", 7))
    t.add_prompt([6, 7, 8, 9, 10])
    t.add_sample(Sample([11] * 4, [-0.1] * 4, "stop", 7))
    t.turns = [Turn("a", "b", False, False, action_tokens=2, observation_tokens=5)]
    t.turns.append(Turn("c", "the end", False, False, action_tokens=4))
    return t


def test_the_numbers_of_tokens_are_the_mask(tmp_path):
    t = played()
    (line,) = read_episodes(write_episodes(tmp_path, 3, [t]))
    runs = [line["prompt_tokens"], *(n for x in line["turns"] for n in (x["action_tokens"], x["observation_tokens"]))]
    written = itertools.cycle([0, 1])
    assert [bit for n in runs for bit in [next(written)] * n] == t.action_mask
    for turn in line["turns"]:  # in a run no latency
        assert turn.keys() == vars(t.turns[0]).keys() - {"latency_s", "results", "new_tools"}
    assert (line["update"], line["horizon"], line["length"], line["tokens"], line["action_tokens"]) == (3, 9, 2, 14, 6)


def test_the_advantage_is_of_the_episodes_in_the_loss(tmp_path):
    inside, outside = played(), played(reward=0.0)
    lines = read_episodes(write_episodes(tmp_path, 0, [outside, inside], [(inside, 0.5)]))
    assert [line["advantage"] for line in lines] == [None, 0.5]


def test_a_system_prompt_is_kept_once(tmp_path):
    many = [played(system_prompt=text) for text in ("rules\r\n", "others", "rules\r\n")]
    write_episodes(tmp_path, 0, many)
    lines = read_episodes(write_episodes(tmp_path, 1, many))
    assert [read_system_prompt(tmp_path, line["system_prompt"]) for line in lines] == [t.system_prompt for t in many]
    assert len(list((tmp_path / "system-prompts").iterdir())) == 2
    assert [path.name for path in episode_files(tmp_path)] == ["update-000000.jsonl", "update-000001.jsonl"]


def test_half_a_surrogate_pair_ends_no_run(tmp_path):
    t = played(system_prompt="rules \ud800")
    t.turns[0].observation = "\udfff <b> \u2028 é"
    (line,) = read_episodes(write_episodes(tmp_path, 0, [t]))
    assert line["turns"][0]["observation"] == t.turns[0].observation
    assert read_system_prompt(tmp_path, line["system_prompt"]) == "rules \\ud800"


def test_a_torn_last_line_is_dropped_and_a_damaged_one_named(tmp_path):
    path = write_episodes(tmp_path, 0, [played(), played()])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert len(read_episodes(path)) == 1
    for file, lines in ((path, 2), (tmp_path / "evaluation.jsonl", 1)):
        EpisodeWriter(file).write(played())
        assert len(read_episodes(file)) == lines
    for damaged in (b"[1]", whole.split(b"\n")[0].replace(b'"success"', b'"suc"'), b'{"task_id": "a", "turns": [1]}'):
        path.write_bytes(damaged + b"\n" + whole)
        with pytest.raises(StateError, match=r"line 1 of .*update-000000.jsonl"):
            read_episodes(path)
