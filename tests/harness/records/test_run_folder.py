import json

import pytest
from child import python

from eh_gym.errors import ConfigError, StateError
from harness.evaluate import defaults
from harness.records.run_folder import forget, lengthen, prepare, saved_config
from harness.settings.grpo import GRPOConfig
from harness.settings.section import changed
from harness.training.command import read_command

STARTS = """
import os, sys
from dataclasses import replace
from harness.records.run_folder import prepare
from harness.settings.grpo import GRPOConfig
config = GRPOConfig.from_json(sys.argv[1])
waits, starts = os.pipe()
for seed in range(20):
    if os.fork() == 0:
        os.close(starts)
        os.read(waits, 1)  # until the parent has closed its end
        try:
            prepare(replace(config, seed=seed))
            said = str(seed)
        except Exception as error:
            said = type(error).__name__
        os.write(1, b" " + said.encode())  # at once, where print would mix the words
        os._exit(0)
os.close(starts)
for _ in range(20):
    os.wait()
"""


def test_of_20_runs_that_begin_at_once_in_a_folder_one_runs_and_the_others_write_nothing(quick):
    words = python("-c", STARTS, quick.to_json()).split()
    assert sorted(words)[1:] == ["ConfigError"] * 19
    (seed,) = (word for word in words if word.isdigit())
    assert json.loads((quick.out / "config.json").read_text())["seed"] == int(seed)
    assert {path.name for path in quick.out.iterdir()} == {"config.json", "versions.json", ".lock"}


def test_a_run_that_is_killed_while_it_writes_its_settings_leaves_its_folder_free(quick, monkeypatch):

    def killed(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GRPOConfig, "to_json", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(quick)
    folder = prepare(quick)
    assert json.loads((folder / "config.json").read_text())["seed"] == quick.seed


def test_the_default_folder_is_numbered_when_it_is_taken(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [prepare(changed(quick, out=None)).name for _ in range(3)]
    assert names == [f"EH-Cabinet-v0-elastic-seed0{end}" for end in ("", "-2", "-3")]


@pytest.mark.parametrize("text", ['{"k0": ', "[]", '{"k0": 3}', '{"model_type": "qwen2"}'])
def test_settings_that_can_t_be_read_are_refused(quick, text):
    folder = prepare(quick)
    (folder / "config.json").write_text(text)
    with pytest.raises(StateError, match=r"config.json.*restore"):
        saved_config(folder)


def test_a_run_that_never_began_leaves_no_folder_and_deletes_nothing_that_it_did_not_make(quick):
    folder = prepare(quick)
    (folder / "checkpoints" / "update-000000").mkdir(parents=True)
    forget(folder, made=True)
    with pytest.raises(ConfigError, match="--resume"):
        prepare(quick)
    (folder / "checkpoints" / "update-000000").rmdir()
    (folder / "mine").touch()
    forget(folder, made=False)
    assert (folder / "mine").exists()
    forget(prepare(quick), made=True)
    assert not folder.exists()


def test_an_earlier_run_s_two_settings_of_recomputation_are_read_as_one(quick):
    file = prepare(quick) / "config.json"
    saved = json.loads(file.read_text())
    del saved["optimizer"]["recompute"]
    for on, kept, now in ((True, False, "all"), (True, True, "fit"), (False, False, "none"), (False, True, "none")):
        saved["optimizer"] |= {"gradient_checkpointing": on, "keep_attention": kept}
        file.write_text(json.dumps(saved))
        assert read_command(["--resume", str(file.parent)]).config == changed(quick, recompute=now)


def test_a_moved_environment_file_is_named_and_may_be_given_again(quick, tmp_path):
    old, new = tmp_path / "a.py", tmp_path / "b.py"
    old.write_text("from envs.cabinet.env import CabinetEnv as Maze\n")
    folder = prepare(changed(quick, env=f"{old}:Maze:2,EH-Cabinet-v0:1"))
    (folder / "model").mkdir()
    old.rename(new)
    missing = rf"environment file {old} is missing; put it back, or name it with --env FILE\.py:Maze:2,EH-Cabinet-v0:1$"
    for words in ([], ["--env", f"{old}:Maze:2,EH-Cabinet-v0:1"], ["--env", "EH-Cabinet-v0"]):
        for read in (
            lambda words: read_command(["--resume", str(folder), *words]),
            lambda words: defaults(words, folder),
        ):
            with pytest.raises(ConfigError, match=missing):
                read(words)
    env = f"{new}:Maze:2,EH-Cabinet-v0:1"
    request = read_command(["--resume", str(folder), "--env", env])
    assert (request.config.environment.env, request.notes) == (env, [])
    assert defaults(["--env", env], folder).environment.env == f"{new}:Maze,EH-Cabinet-v0"
    lengthen(folder, request.config, pytest.fail)
    assert saved_config(folder).environment.env == env
