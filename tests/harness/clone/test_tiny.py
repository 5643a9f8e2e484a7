import gymnasium as gym
import pytest
import torch

from eh_gym import UnicodeText
from eh_gym.errors import ConfigError
from harness.clone.tiny import new_tiny_policy


@pytest.mark.parametrize("env_id", ["EH-Cabinet-v0", "EH-CabinetLocked-v0", "EH-CabinetOpenEnded-v0"])
def test_every_legal_action_survives_the_word_tokenizer(env_id):
    policy = new_tiny_policy(gym.make(env_id), seed=0)
    calls = ["read()", "close()", "list()", *["unlock()"] * ("Locked" in env_id)]
    calls += [*(f"open({d})" for d in "abcdefghijkl"), *(f"submit({n:02d})" for n in range(100))]
    for call in calls:
        assert policy.chat.read(policy.chat.reply_ids(call)).action == call
    unknown = policy.tokenizer.unk_token_id
    for text in ("start c", "ok", "error open b", "next f", "code 7 3", "error closed"):
        ids = policy.chat.observation_ids(text, stopped=True)
        assert unknown not in ids
    assert 35 <= len(policy.tokenizer) <= 50
    assert 100_000 <= policy.model.num_parameters() <= 120_000


def test_a_seed_decides_the_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = (new_tiny_policy(gym.make("EH-Cabinet-v0"), seed=s).model for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    same = [torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(x, y) for x, y in zip(a.parameters(), c.parameters(), strict=True))


class Shop(gym.Env[str, str]):
    """Few words, and actions that mean nothing without their blanks."""

    observation_space = action_space = UnicodeText(100)
    task_ids = ("apple", "pear")
    action = "sql SELECT price FROM {task}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task = (options or {}).get("task_id", "apple")
        return f"price of {self.task}", {"task_id": self.task, "system_prompt": "", "instruction": ""}

    def step(self, action):
        success = action == self.expert()
        return "done", float(success), True, False, {"success": success}

    def expert(self):
        return self.action.format(task=self.task)

    def random_action(self, rng):
        return self.expert()


def test_actions_that_no_tokenizer_keeps_are_refused():
    env = Shop()
    env.action = "say <eos> to {task}"
    with pytest.raises(ConfigError, match="'say <eos> to apple'"):
        new_tiny_policy(env, seed=0)


@pytest.mark.parametrize("limit", [6, 7])
def test_actions_that_the_model_may_not_write_are_refused(limit):
    env = Shop()
    env.action, env.task_ids = "say price of {task}", ("apple", "a b c")  # 4 words and the end; 6 and the end
    if limit == 7:
        new_tiny_policy(env, seed=0, max_action_tokens=limit)
        return
    with pytest.raises(ConfigError, match=r"say price of a b c.*with 7 tokens; pass --max-action-tokens 7"):
        new_tiny_policy(env, seed=0, max_action_tokens=limit)


def test_few_words_are_tokens_also_where_actions_have_blanks():
    told = []
    policy = new_tiny_policy(Shop(), seed=0, on_episode=told.append)
    assert len(told) == 2
    assert policy.model.num_parameters() < 120_000
    ids = policy.chat.reply_ids("sql SELECT price FROM pear")
    assert "pear" in policy.tokenizer.convert_ids_to_tokens(ids)[-2]
    assert policy.chat.read(ids).action == "sql SELECT price FROM pear"
