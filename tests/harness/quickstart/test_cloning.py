"""The warm start: when it stops, what it says, what it keeps. A real model is in sampling/test_pretrained.py."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import eh_gym  # noqa: F401 - registers the environments
from eh_gym.errors import ConfigError
from harness.assembly.environments import teacher
from harness.assembly.first_policy import clone_expert
from harness.policy.chat import ChatFormat
from harness.policy.policy import Policy
from harness.quickstart import cloning
from harness.quickstart.cloning import cached_warm_start, demonstrations, text_perplexity, warm_start
from harness.quickstart.tiny import new_tiny_policy
from harness.run.display import Display
from harness.settings.grpo import GRPOConfig
from harness.settings.warm_start import WarmStart

FEW = WarmStart(episodes=6, max_optimal_steps=4, updates=3)


@pytest.fixture
def env() -> gym.Env[str, str]:
    return gym.make("EH-Cabinet-v0", split="train")


def shown(act: Any) -> str:
    """What a display prints into a file."""
    file = io.StringIO()
    act(Display(Console(file=file, width=200)))
    return file.getvalue()


def test_a_number_of_updates_is_exact_and_a_loss_target_stops_earlier(env: gym.Env[str, str]) -> None:
    assert warm_start(env, new_tiny_policy(env, seed=0), FEW, seed=0)["warm_start/steps"] == 3
    loose = dataclasses.replace(FEW, updates=0, max_batches=23, loss_target=1e3)
    done = warm_start(env, new_tiny_policy(env, seed=0), loose, seed=0)
    assert done["warm_start/steps"] == 21  # never earlier, with a tiny model
    assert done["warm_start/demonstrations"] == 6
    assert done["warm_start/tokens"] > 0
    tight = dataclasses.replace(loose, loss_target=1e-9)
    assert warm_start(env, new_tiny_policy(env, seed=0), tight, seed=0)["warm_start/steps"] == 23


@pytest.mark.parametrize(
    ("limit", "flag"),
    [({"max_tokens": 3}, "--warm-start.max-tokens"), ({"max_optimal_steps": 1}, "--warm-start.max-optimal-steps")],
)
def test_without_a_demonstration_the_error_says_which_limit_to_raise(
    env: gym.Env[str, str], monkeypatch: pytest.MonkeyPatch, limit: dict[str, int], flag: str
) -> None:
    tried: list[str] = []
    play = cloning.demonstrate
    monkeypatch.setattr(cloning, "demonstrate", lambda *args, **how: tried.append(args[1]) or play(*args, **how))
    monkeypatch.setattr(cloning, "_MOST_MISSES", 20)
    env.unwrapped.task_ids = env.unwrapped.task_ids[:100]  # type: ignore[attr-defined]
    settings = WarmStart(episodes=2, **limit)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=flag):
        demonstrations(env, new_tiny_policy(env, seed=0), settings, waste=0.0, count=2, seed=0)
    assert len(tried) == 40  # 20 for each demonstration, and not all tasks


def test_an_environment_without_an_expert_is_an_error(env: gym.Env[str, str]) -> None:
    class Silent(gym.Env[str, str]):
        task_ids = ("a",)

    with pytest.raises(ConfigError, match="expert, random_action"):
        warm_start(Silent(), new_tiny_policy(env, seed=0), FEW, seed=0)


def test_a_model_that_has_forgotten_much_is_warned_about(env: gym.Env[str, str]) -> None:
    cost = warm_start(env, new_tiny_policy(env, seed=0), FEW, seed=0)
    assert "perplexity" not in shown(lambda display: display.warm_started(cost))  # tiny models know no plain text
    for after, warned in ((12.0, False), (13.0, True)):
        told = cost | {"warm_start/perplexity_before": 10.0, "warm_start/perplexity_after": after}
        text = shown(lambda display, told=told: display.warm_started(told))

        assert ("warning" in text) is warned


def test_the_perplexity_is_that_of_the_models_own_distribution(env: gym.Env[str, str]) -> None:
    """With all weights 0 every token has the probability 1 / vocabulary, so the perplexity is the vocabulary's size."""
    policy = new_tiny_policy(env, seed=0)
    for parameter in policy.model.parameters():
        parameter.data.zero_()
    assert text_perplexity(policy) == pytest.approx(policy.model.config.vocab_size, rel=1e-4)


@pytest.mark.parametrize(
    ("template", "begun"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}", True),
        ("{% for m in messages %}{{ m.content + eos_token }}{% endfor %}", False),
        ("{% for m in messages %}{{ bos_token + m.content + eos_token }}{% endfor %}", False),  # as SmolLM2's
    ],
)
def test_the_plain_text_begins_as_conversations_do(
    template: str, begun: bool, env: gym.Env[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma's perplexity without its first token was 71 before a clone and 233 after it; with it 17.8 and 23.2."""
    policy = new_tiny_policy(env, seed=0)
    policy.tokenizer.bos_token, policy.tokenizer.chat_template = policy.tokenizer.pad_token, template
    policy.chat = ChatFormat(policy.tokenizer)
    scored: list[int] = []
    batch = policy.batch
    monkeypatch.setattr(Policy, "batch", lambda _, episodes: scored.extend(episodes[0].ids) or batch(episodes))
    text_perplexity(policy)
    assert (scored[0] == policy.tokenizer.bos_token_id) is begun


def test_the_oldest_entries_of_the_cache_are_deleted_above_its_limit(
    env: gym.Env[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry(seed: int) -> Path:
        before = set(folder.glob("*"))
        cached_warm_start(tmp_path, env, new_tiny_policy(env, seed=0), FEW, seed=seed)
        (new,) = set(folder.glob("*")) - before
        os.utime(new, (seed, seed))  # as if it was used then
        return new

    folder = tmp_path / "warm_start"
    first, second = entry(1), entry(2)
    part, gone = folder / ".part-other", folder / "gone"
    part.mkdir()  # another process writes it now; another one has been deleted since the folder was listed
    (part / "model.pt").write_bytes(bytes(10_000_000))
    gone.symlink_to(folder / "nowhere")
    size = sum(file.stat().st_size for file in first.iterdir())
    monkeypatch.setattr(cloning, "_CACHE_BYTES", int(2.5 * size))
    cached_warm_start(tmp_path, env, new_tiny_policy(env, seed=0), FEW, seed=1)  # now it is the newest
    third = entry(3)
    assert set(folder.iterdir()) == {first, third, part, gone}
    assert not second.exists()


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_damaged_entry_of_the_cache_is_made_again(env: gym.Env[str, str], tmp_path: Path, kept: int) -> None:
    def cloned() -> float:
        return cached_warm_start(tmp_path, env, new_tiny_policy(env, seed=0), FEW, seed=0)["warm_start/cpu_s"]

    first = cloned()
    (file,) = tmp_path.glob("warm_start/*/model.pt")
    file.write_bytes(file.read_bytes()[:kept])
    second = cloned()
    assert second != first
    assert cloned() == second  # from the cache


def swapped(policy: Policy) -> Policy:
    """With two words of the vocabulary in each other's places."""
    vocabulary, text = policy.tokenizer.get_vocab(), policy.tokenizer.backend_tokenizer.to_str()
    a, b = vocabulary["open("], vocabulary["read("]
    text = text.replace(f'"open(":{a}', f'"open(":{b}').replace(f'"read(":{b}', f'"read(":{a}')
    policy.tokenizer._tokenizer = type(policy.tokenizer.backend_tokenizer).from_str(text)
    assert policy.tokenizer.get_vocab()["open("] == b
    return policy


def longer(policy: Policy) -> Policy:
    """With other rotary frequencies, as with another --max-context for LongRoPE; `state_dict` has them not."""
    policy.model.base_model.rotary_emb.inv_freq /= 2
    return policy


def test_what_a_clone_depends_on_never_meets_an_old_cache(
    env: gym.Env[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for policy, entries in (
        (new_tiny_policy(env, seed=0), 1),
        (new_tiny_policy(env, seed=0, max_observation_tokens=64), 2),
        (new_tiny_policy(env, seed=0), 2),
        (new_tiny_policy(env, seed=0, packing=False), 3),
        (longer(new_tiny_policy(env, seed=0)), 4),
        (swapped(new_tiny_policy(env, seed=0)), 5),
    ):
        cached_warm_start(tmp_path, env, policy, FEW, seed=0)
        assert len(list((tmp_path / "warm_start").iterdir())) == entries
    policy = new_tiny_policy(env, seed=0)
    monkeypatch.setattr(type(env.unwrapped), "expert", lambda self: self.random_action(np.random.default_rng(0)))
    cached_warm_start(tmp_path, env, policy, FEW, seed=0)
    assert len(list((tmp_path / "warm_start").iterdir())) == 6


@pytest.mark.parametrize(("seed", "same"), [(-1, False), (7, True)])
@pytest.mark.parametrize("flags", [{}, {"lora_rank": 4}])
def test_runs_of_other_seeds_can_share_a_clone(
    env: gym.Env[str, str], monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], seed: int, same: bool
) -> None:
    if "lora_rank" in flags:
        pytest.importorskip("peft")
        monkeypatch.setattr(
            "harness.assembly.first_policy.is_pretrained", lambda policy: True
        )  # its clone is in the adapters
    losses = set()
    for run in (0, 1):
        config = GRPOConfig(seed=run, warm_start=dataclasses.replace(FEW, seed=seed), **flags)
        display, env = Display(Console(quiet=True)), teacher(config, config.env)
        cloned = clone_expert(config, env, new_tiny_policy(gym.make(config.env), seed=0), "cpu", display, cached=False)
        losses.add(cloned["warm_start/loss"])
    assert (len(losses) == 1) is same


def test_a_cache_that_cannot_be_written_is_told_before_the_clone_is_made(
    env: gym.Env[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("harness.assembly.first_policy.cache_dir", lambda: tmp_path / "file")
    said = io.StringIO()
    config = GRPOConfig(warm_start=FEW)
    done = clone_expert(config, env, new_tiny_policy(env, seed=0), "cpu", Display(Console(file=said, width=400)))
    assert done["warm_start/steps"] > 0
    assert "EH_CACHE_DIR" in said.getvalue().splitlines()[0]
