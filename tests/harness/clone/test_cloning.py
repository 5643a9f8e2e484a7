"""The warm start: when it stops, and the folder that it leaves. A real model is in sampling/test_pretrained.py."""

import copy
import dataclasses
import io
import json
from unittest import mock

import gymnasium as gym
import pytest
import torch
from quiet_run import run
from rich.console import Console

from eh_gym.errors import ConfigError
from envs.make import make_environment
from envs.mixed import spec_of
from harness.clone.clones import clone_expert
from harness.clone.cloning import clone_key, demonstrations, warm_start
from harness.clone.tiny import new_tiny_policy
from harness.evaluation.held_out import HeldOutEvaluator
from harness.machine.ranks import Ranks
from harness.rollout.environment import task_environment
from harness.settings.grpo import from_recipe
from harness.settings.model import Model
from harness.settings.section import changed
from harness.settings.warm_start import WarmStart
from harness.terminal.display import Display
from harness.training.first_policy import load

FEW = WarmStart(episodes=6, max_optimal_steps=4, max_batches=3, loss_target=0.0, learning_rate=3e-3, batch_tokens=600)
CONFIG = dataclasses.replace(from_recipe("quickstart"), warm_start=FEW)
QUIET = Display(Console(quiet=True))


@pytest.fixture
def env():
    return gym.make("EH-Cabinet-v0", split="train")


def test_a_loss_target_stops_earlier_and_without_one_all_batches_are_taken(env):
    assert warm_start(env, new_tiny_policy(env, seed=0), FEW, seed=0).batches == 3
    loose = dataclasses.replace(FEW, max_batches=23, loss_target=1e3)
    done = warm_start(env, new_tiny_policy(env, seed=0), loose, seed=0)
    assert (done.batches, done.demonstrations) == (21, 6)  # never earlier, with a tiny model
    assert done.tokens > 0


@pytest.mark.parametrize("limit", [{"max_tokens": 3}, {"max_optimal_steps": 1}])
def test_without_a_demonstration_the_error_says_which_limit_to_raise(env, limit):
    env.unwrapped.task_ids = env.unwrapped.task_ids[:20]
    settings = WarmStart(episodes=2, **limit)
    with pytest.raises(ConfigError, match="or max_tokens in a recipe"):
        demonstrations(env, new_tiny_policy(env, seed=0), settings, waste=0.0, count=2, seed=0)


def swapped(policy):
    vocabulary, text = policy.tokenizer.get_vocab(), policy.tokenizer.backend_tokenizer.to_str()
    a, b = vocabulary["open("], vocabulary["read("]
    text = text.replace(f'"open(":{a}', f'"open(":{b}').replace(f'"read(":{b}', f'"read(":{a}')
    policy.tokenizer._tokenizer = type(policy.tokenizer.backend_tokenizer).from_str(text)
    assert policy.tokenizer.get_vocab()["open("] == b
    return policy


def longer(policy):
    """With other rotary frequencies, as with another --max-context for LongRoPE; `state_dict` has them not."""
    policy.model.base_model.rotary_emb.inv_freq /= 2
    return policy


def test_what_a_clone_depends_on_never_meets_an_old_one(env):
    def key(policy, lora_rank=0, device="cpu"):
        return clone_key(env, policy, FEW, lora_rank=lora_rank, seed=0, device=device)

    policy = new_tiny_policy(env, seed=0)
    keys = [
        key(policy),
        key(new_tiny_policy(env, seed=1)),
        key(new_tiny_policy(env, seed=0, settings=Model(max_observation_tokens=64))),
        key(longer(copy.deepcopy(policy))),
        key(swapped(copy.deepcopy(policy))),
        key(policy, lora_rank=4),
        key(policy, device="cuda"),
    ]
    assert len(set(keys)) == len(keys)
    assert key(new_tiny_policy(env, seed=0)) == keys[0]


def test_a_clone_depends_on_the_environments_code_and_tasks(env, tmp_path, monkeypatch):
    def key(name, **args):
        made = make_environment(spec_of(name), args)
        return clone_key(made, policy, FEW, lora_rank=0, seed=0, device="cpu")

    policy = new_tiny_policy(env, seed=0)
    file, beside = tmp_path / "own.py", tmp_path / "beside.py"
    file.write_text("from envs.cabinet.env import CabinetEnv\n\n\nclass Own(CabinetEnv):\n    pass\n")
    own = f"{file}:Own"
    (tmp_path / "further").mkdir()
    further = tmp_path / "further" / "further.py"
    further.write_text("from own import Own\n\n\nclass Further(Own):\n    pass\n")
    keys = [key(own), key("EH-Cabinet-v0"), key(f"EH-Cabinet-v0:2,{own}:1"), key("EH-Cabinet-v0", tasks=8)]
    assert key(own) == keys[0]
    keys += [key(f"{further}:Further")]
    beside.write_text("HINT = 1\n")
    keys += [key(own), key(f"EH-Cabinet-v0:2,{own}:1")]
    file.write_text(file.read_text() + "    # changed\n")
    keys += [key(own), key(f"{further}:Further")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("seed", "same"), [(-1, False), (7, True)])
@pytest.mark.parametrize("flags", [{}, {"lora_rank": 4}])
def test_runs_of_other_seeds_can_share_a_clone(own_cache, monkeypatch, flags, seed, same):
    if "lora_rank" in flags:
        pytest.importorskip("peft")
        # its clone is then in the adapters
        monkeypatch.setattr("harness.clone.clones.is_pretrained", lambda policy: True)
    found = []
    for number in (0, 0, 1):
        config = changed(
            dataclasses.replace(CONFIG, seed=number, warm_start=dataclasses.replace(FEW, seed=seed)), **flags
        )
        env = task_environment(config.environment, "EH-Cabinet-v0")  # a new one, whose episodes have the first hints
        found.append(clone_expert(config, env, new_tiny_policy(env, seed=0), "cpu", QUIET, own_cache))
    assert found[0] == found[1]
    assert (found[1] == found[2]) is same


def test_equal_runs_share_the_evaluation_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.clone.clones.cache_dir", lambda: tmp_path)
    few = {"updates": 1, "tasks_per_update": 2, "group_size": 2, "eval_tasks": 2, "model": "tiny"}
    config = changed(CONFIG, **few)
    found = []
    for name, other in [("first", {}), ("equal", {"learning_rate": 0.5}), ("longer", {"max_action_tokens": 7})]:
        with mock.patch.object(HeldOutEvaluator, "_play", autospec=True, side_effect=HeldOutEvaluator._play) as play:
            found.append((run(changed(config, out=tmp_path / name, **other))["before"], play.call_count))
    assert found[1] == (json.loads(json.dumps(found[0][0])), 2)
    assert (found[0][1], found[2][1]) == (4, 4)  # sampled and greedy, before and after


def test_a_clone_is_loaded_as_it_was_trained(env, own_cache):
    config, policy = CONFIG, new_tiny_policy(env, seed=0)
    clone = clone_expert(config, env, policy, "cpu", QUIET, own_cache)
    loaded = load(config, env, "cpu", Ranks(), QUIET, clone=clone)
    pairs = zip(policy.model.parameters(), loaded.model.parameters(), strict=True)
    assert all(torch.equal(trained, read) for trained, read in pairs)
    assert (loaded.packs, loaded.chat.stop_ids) == (policy.packs, policy.chat.stop_ids)
    # transformers would put Qwen2's own tokenizer in the place of the saved one
    for text in ("open(c)", "submit(73)", "error open b"):
        assert loaded.chat.reply_ids(text) == policy.chat.reply_ids(text)
    assert loaded.chat.prompt_ids("s", "start c") == policy.chat.prompt_ids("s", "start c")


def test_the_clone_of_a_program_s_own_environment_is_in_the_run_s_folder(env, tmp_path):
    config, said = changed(CONFIG, env="given:make"), io.StringIO()
    display = Display(Console(file=said, width=400))
    assert clone_expert(config, env, new_tiny_policy(env, seed=0), "cpu", display, tmp_path) == tmp_path / "clone"
    assert f"the clone is {tmp_path / 'clone'}" in said.getvalue()
    assert "3 batches of 6 demonstrations, " in said.getvalue()


def test_a_cache_that_cannot_be_written_is_told_before_the_clone_is_made(env, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("harness.clone.clones.cache_dir", lambda: tmp_path / "file")
    with pytest.raises(ConfigError, match="EH_CACHE_DIR"):
        clone_expert(CONFIG, env, new_tiny_policy(env, seed=0), "cpu", QUIET, tmp_path)
