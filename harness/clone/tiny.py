"""`--model tiny`: a new Qwen2 of about 100,000 to 2,000,000 parameters, with a tokenizer made for one environment.

The tokenizer is built from transcripts of the environment's expert and of random actions. Its tokens are whole words if
there are few, with the blanks before them if actions have blanks; otherwise it is a byte-level BPE. Words that are in
no transcript, such as the cabinet's `empty`, become `<unk>`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import gymnasium as gym
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from eh_gym.errors import ConfigError
from envs.expert import check_expert, demonstrated_tasks
from harness.chat.chat import ChatFormat
from harness.clone.demonstrations import demonstration
from harness.model.attention import PACKED
from harness.model.fresh import fresh_qwen2
from harness.model.policy import Policy
from harness.settings.model import Model

TOKENIZER_TASKS = 600  # the most for a tokenizer
_FEW_WORDS = 256  # with fewer distinct words, the tokens are words
_WORD = r"[a-z]+\(|\d|[a-z]+|[^\s]"
_BLANK_AND_WORD = rf" ?(?:{_WORD})"
_SPECIAL = ["<pad>", "<eos>", "<obs>", "<act>", "<unk>"]
# A tiny model can't use a system prompt. The comment tells `ChatFormat` that it is left out on purpose.
_TEMPLATE = (
    "{# the system prompt is left out #}"
    "{% for m in messages %}{% if m.role == 'user' %}<obs>{{ m.content }}<act>"
    "{% elif m.role == 'assistant' %}{{ m.content }}<eos>{% endif %}{% endfor %}"
)

# Width, feed-forward width, layers, heads, key-value heads; the positions; the standard deviation of the first weights.
# With the usual 0.02, a model of width 64 did not learn.
_OF_WORDS = (64, 192, 2, 2, 2), 2048, 0.1
_OF_BYTES = (128, 384, 2, 4, 4), 4096, 0.05
_BYTE_PAIRS = 2048
_MOST_LONG = 0.01  # of all actions; 4 in 10,000 of EH-BFCL's are longer than its recipe allows


def _tokenizer(texts: Iterable[str], word: str) -> PreTrainedTokenizerFast:
    """`word` is the pattern of a token; empty for a BPE."""
    if word:
        words = sorted({w for text in texts for w in re.findall(word, text)} | set("0123456789"))
        vocabulary = {w: i for i, w in enumerate([*_SPECIAL, *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word), behavior="removed", invert=True)
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=_BYTE_PAIRS,
            special_tokens=_SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<obs>", "<act>"],
    )
    fast.chat_template = _TEMPLATE
    return fast


def new_tiny_policy(
    env: gym.Env[str, str],
    *,
    seed: int,
    settings: Model | None = None,
    max_action_tokens: int | None = None,
    packing: bool = True,
    on_episode: Callable[[object], None] = lambda played: None,
) -> Policy:
    """Makes a tiny model with random weights, and a tokenizer for `env`, with the arguments of `load_policy`.

    `env` has the training split, ``task_ids``, ``expert()`` and ``random_action(rng)``. `on_episode` is called after
    each of the expert's episodes.
    """
    check_expert(env, "--model tiny", "give --model a folder or hub id")
    rng = np.random.default_rng(0)
    texts: list[str] = []
    actions: list[str] = []
    for task in demonstrated_tasks(env)[:TOKENIZER_TASKS]:
        played = demonstration(env, task, waste=0.3, max_steps=60, rng=rng)
        assert played is not None, "no task is too long without a limit"
        actions += [turn.action for turn in played.turns]
        on_episode(played)
        texts += [played.prompt, *chain(*((turn.action, turn.observation) for turn in played.turns))]
    few = len(set(" ".join(texts).split())) < _FEW_WORDS
    for word in (_WORD, _BLANK_AND_WORD, "") if few else ("",):  # the first that keeps the blanks of actions
        tokenizer = _tokenizer(texts, word)
        if not _changed(ChatFormat(tokenizer), actions):
            break
    chat = ChatFormat(tokenizer, settings or Model())
    _check_actions(chat, actions, max_action_tokens)
    shape, positions, deviation = _OF_WORDS if word else _OF_BYTES
    model = fresh_qwen2(
        len(tokenizer),
        *shape,
        positions=positions,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        initializer_range=deviation,
        seed=seed,
    )
    if packing:
        model.set_attn_implementation(PACKED)
    return Policy(model, tokenizer, chat)


def _changed(chat: ChatFormat, actions: Iterable[str]) -> list[str]:
    return [action for action in set(actions) if chat.read(chat.reply_ids(action)).action != action]


def _check_actions(chat: ChatFormat, actions: Sequence[str], max_action_tokens: int | None) -> None:
    if changed := _changed(chat, actions):
        text = min(changed)
        raise ConfigError(
            f"--model tiny can't write the expert's action {text!r}: its tokenizer makes "
            f"{chat.read(chat.reply_ids(text)).action!r} of it; leave {', '.join(_SPECIAL)} out of actions, or give "
            "--model a folder or hub id"
        )
    lengths = {action: len(chat.reply_ids(action)) for action in set(actions)}
    long = [action for action in actions if max_action_tokens is not None and lengths[action] > max_action_tokens]
    if len(long) > _MOST_LONG * len(actions):
        raise ConfigError(
            f"{len(long)} of the expert's {len(actions)} actions are longer than --max-action-tokens "
            f"{max_action_tokens}, such as {long[0]!r} with {lengths[long[0]]} tokens; pass --max-action-tokens "
            f"{max(lengths.values())}"
        )
