"""`--model tiny`: a new Qwen2 of about 100,000 to 2,000,000 parameters, with a tokenizer made for one environment.

It shows every part of training on one CPU core within minutes, with nothing to download. It can do nothing outside its
environment. The tokenizer is built from transcripts of the environment's own expert and of random actions. If the environment
uses only a few dozen words, and no blanks in its actions, it has whole words; otherwise it is a byte-level BPE. A word that no
transcript holds is `<unk>`, such as the cabinet's `empty`, because experts open no empty drawer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from eh_gym.errors import ConfigError
from envs.expert import Demonstration, demonstrate, demonstrated_tasks
from harness.policy.attention import PACKED
from harness.policy.chat import ChatFormat
from harness.policy.fresh import fresh_qwen2
from harness.policy.policy import Policy
from harness.policy.shape import ModelShape

__all__ = [
    "TINY_BPE",
    "TINY_WORDS",
    "TinyModel",
    "new_tiny_policy",
    "tiny_model",
    "tiny_tokenizer",
]

_TINY_TASKS = 600  # a tiny tokenizer is built from this many tasks of the training split
_FEW_WORDS = 256  # an environment with fewer distinct words than this gets a word-level tokenizer
_WORD = r"[a-z]+\(|\d|[a-z]+|[^\s]"
_SPECIAL = ["<pad>", "<eos>", "<obs>", "<act>", "<unk>"]
# The system prompt is the same for every task, or far longer than such a model can use. The comment tells `ChatFormat`
# that it is left out on purpose.
_TEMPLATE = (
    "{# the system prompt is left out #}"
    "{% for m in messages %}{% if m.role == 'user' %}<obs>{{ m.content }}<act>"
    "{% elif m.role == 'assistant' %}{{ m.content }}<eos>{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class TinyModel:
    """The shape of a tiny model.

    Attributes:
        tokenizer: "words" or "bpe".
        vocab_size: The vocabulary size of the BPE; it is not used for words.
        hidden_size: The width of the hidden states and of the embedding, which is tied to the output layer.
        layers: The number of layers.
        heads: The number of attention heads.
        ffn_size: The width of the feed-forward layers.
        max_positions: The longest episode in tokens.
        initializer_range: The standard deviation of the initial weights. With the usual value, 0.02, a model of width 64 did
            not learn.
    """

    tokenizer: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    ffn_size: int
    max_positions: int
    initializer_range: float


TINY_WORDS = TinyModel("words", 0, 64, 2, 2, 192, 2048, 0.1)
TINY_BPE = TinyModel("bpe", 2048, 128, 2, 4, 384, 4096, 0.05)


def tiny_model(shape: TinyModel, *, vocab_size: int, pad_id: int, eos_id: int, seed: int) -> Qwen2ForCausalLM:
    """Makes a tiny model with random weights; the same seed gives the same weights."""
    whole = ModelShape(
        vocab=vocab_size,
        width=shape.hidden_size,
        ffn=shape.ffn_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.heads,
        tied=True,
        positions=shape.max_positions,
    )
    return fresh_qwen2(whole, eos_id=eos_id, pad_id=pad_id, initializer_range=shape.initializer_range, seed=seed)


def tiny_tokenizer(shape: TinyModel, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Builds a tokenizer from `texts`, with the chat template of the tiny models."""
    if shape.tokenizer == "words":
        words = sorted({w for text in texts for w in re.findall(_WORD, text)} | set("0123456789"))
        vocabulary = {w: i for i, w in enumerate([*_SPECIAL, *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
        tokenizer.decoder = decoders.Fuse()
    elif shape.tokenizer == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=shape.vocab_size,
            special_tokens=_SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
    else:
        raise ConfigError(f"tokenizer must be one of 'words', 'bpe', got {shape.tokenizer!r}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<obs>", "<act>"],
    )
    fast.chat_template = _TEMPLATE
    return fast


def _played(env: gym.Env[str, str], tasks: Iterable[str], *, waste: float, max_steps: int) -> Iterator[Demonstration]:
    rng = np.random.default_rng(0)
    for task in tasks:
        played = demonstrate(env, task, waste=waste, max_steps=max_steps, rng=rng)
        assert played is not None
        yield played


def _texts(played: Demonstration) -> Iterator[str]:
    yield played.observations[0]
    for action, observation in zip(played.actions, played.observations[1:], strict=True):
        yield action
        yield observation


def new_tiny_policy(
    env: gym.Env[str, str],
    *,
    seed: int,
    max_observation_tokens: int | None = None,
    max_action_tokens: int | None = None,
    packing: bool = True,
) -> Policy:
    """Makes a tiny model with random weights and a tokenizer for `env`. The tasks of `env` must be the training split's.

    Args:
        env: An environment with ``task_ids``, ``expert()`` and ``random_action(rng)``.
        seed: Draws the weights.
        max_observation_tokens: As for `ChatFormat`.
        max_action_tokens: The most tokens of an action; None for no limit.
        packing: Use the attention for packed episodes.

    Raises:
        ConfigError: `env` has no expert, so that the tokenizer can't be built from its transcripts. Or the model could not
            write the expert's actions: a tokenizer changes one of them, or more than half are longer than `max_action_tokens`.
    """
    base = env.unwrapped
    missing = [name for name in ("task_ids", "expert", "random_action") if not hasattr(base, name)]
    if missing:
        raise ConfigError(
            f"--model tiny needs an environment with {', '.join(missing)}, which {base!r} lacks; "
            "give --model a folder or hub id"
        )
    demonstrations = list(_played(env, itertools.islice(demonstrated_tasks(env), _TINY_TASKS), waste=0.3, max_steps=60))
    texts = [text for played in demonstrations for text in _texts(played)]
    actions = [action for played in demonstrations for action in played.actions]
    few = len(set(" ".join(texts).split())) < _FEW_WORDS
    shape = TINY_WORDS if few else TINY_BPE
    tokenizer = tiny_tokenizer(shape, texts)
    if few and _changed(tokenizer, actions):  # such as blanks, which the words leave out
        shape = TINY_BPE
        tokenizer = tiny_tokenizer(shape, texts)
    _check_actions(tokenizer, actions, max_action_tokens)
    model = tiny_model(
        shape, vocab_size=len(tokenizer), pad_id=tokenizer.pad_token_id, eos_id=tokenizer.eos_token_id, seed=seed
    )
    if packing:
        model.set_attn_implementation(PACKED)
    return Policy(model, tokenizer, ChatFormat(tokenizer, max_observation_tokens=max_observation_tokens))


def _changed(tokenizer: PreTrainedTokenizerFast, actions: Iterable[str]) -> list[str]:
    """Returns the actions that are other texts once they are encoded and decoded as the sampler does."""
    chat = ChatFormat(tokenizer)
    return [action for action in set(actions) if chat.read(chat.reply_ids(action)).action != action]


def _check_actions(tokenizer: PreTrainedTokenizerFast, actions: Sequence[str], max_action_tokens: int | None) -> None:
    """Raises ConfigError if the model could not write the expert's actions."""
    chat = ChatFormat(tokenizer)
    if changed := _changed(tokenizer, actions):
        text = min(changed)
        raise ConfigError(
            f"--model tiny can't write the expert's action {text!r}: its tokenizer makes "
            f"{chat.read(chat.reply_ids(text)).action!r} of it; leave {', '.join(_SPECIAL)} out of actions, or give --model a "
            "folder or hub id"
        )
    lengths = {action: len(chat.reply_ids(action)) for action in set(actions)}
    long = [action for action in actions if max_action_tokens is not None and lengths[action] > max_action_tokens]
    if 2 * len(long) > len(actions):
        raise ConfigError(
            f"{len(long)} of the expert's {len(actions)} actions are longer than --max-action-tokens {max_action_tokens}, such "
            f"as {long[0]!r} with {lengths[long[0]]} tokens; pass --max-action-tokens {max(lengths.values())}"
        )
