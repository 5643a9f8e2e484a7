"""The parsers of model text take a time that grows no faster than the text, whatever is repeated in it.

A model that has fallen into a loop writes one token over and over. Its message is parsed where every other slot waits
for Python's lock, or in a worker that several environments share.
"""

import contextlib
import time

import pytest

from eh_gym.replies import split_reply
from envs.appworld.actions import code_of
from envs.bfcl.backend.calls import LONGEST_PYTHON, DecodeError, decode_hermes, decode_native, decode_python
from envs.cabinet.env import CabinetEnv

LENGTH = 100_000
WORDS = """
( ) () [ ] { } ' " ''' ` ``` ```a # @ , . : ; = - + ~ * ** a. a, a; a< a[ 1+ -1 1_ ... f( f(a= f(a=1), [f( [1, {1: {"a":
lambda:
open(a) submit( <tool_call> <think> </think>
"""
TOKENS = (
    *("a", "1", " ", "\n", "\t", "\r\n", "\\", "\x00", "é", "\u2028", "\ud800", "\U0001f600"),
    *WORDS.split(),
    *("```\n", "```python\n", " ```", "<tool_call>\n", "\n</tool_call>", "<tool_call>\n{}\n</tool_call>"),
    *("not ", "x if x else ", "[x for x in ", "a := ", "'a' ", "print(1)\n", "if a:\n "),
)


def cabinet(text):
    env = CabinetEnv()
    env.reset(seed=0)
    env.step(text)


def decoded(decode):
    def parse(text):
        with contextlib.suppress(DecodeError):
            decode(text)

    return parse


PARSERS = {  # name -> the parser, what a message may begin with, and the characters of the longest that it reads
    "reply": (split_reply, ("", "<think>"), LENGTH),
    "cabinet": (cabinet, ("", "open("), LENGTH),
    "bfcl, python": (decoded(decode_python), ("", "[f(a='", "[f(a="), LONGEST_PYTHON),
    "bfcl, hermes": (decoded(decode_hermes), ("", "<tool_call>\n", '<tool_call>\n{"name": "'), LENGTH),
    "bfcl, native": (decoded(decode_native), ("", '{"tool_calls": [', '{"a": "'), LENGTH),
    "appworld": (code_of, ("", "```", "```python\n", "\t```python\n", "<think>"), LENGTH),
}


def texts(prefixes, length):
    for prefix in prefixes:
        for token in TOKENS:
            yield (prefix + token * (length // len(token) + 1))[:length]


def time_of(parse, text):
    began = time.thread_time()
    parse(text)
    return time.thread_time() - began


def count(_):
    """What a parser is compared with: about 20 ms of Python, and more on a slower or a busy machine."""
    for _ in range(1_000_000):
        pass


def is_quick(parse, text):
    """Whether a parser takes less than 50 ms, or on a slow or a busy machine less than ten times as long as counting.

    The slowest takes twice as long as counting. A time that grew with the square of the text would be a hundred times
    as long.
    """
    took = time_of(parse, text)
    return took < 0.05 or took < 10 * time_of(count, "")


@pytest.mark.parametrize("name", PARSERS)
def test_no_repeated_text_takes_long(name):
    parse, prefixes, length = PARSERS[name]
    for text in texts(prefixes, length):
        assert any(is_quick(parse, text) for _ in range(5)), text[:40]  # one time may have been disturbed


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```json\n{}\n```\n```py\nprint(1)\n```", "print(1)\n"),
        ("```python print(1)```", "```python print(1)```"),
        ("```python\nprint('''\n```\n''')", "print('''\n"),
        ("\t```python\n\tif 1:\n\t    print(1)\n\n\t```", "if 1:\n    print(1)\n\n"),
    ],
)
def test_the_code_of_a_message(message, code):
    assert code_of(message) == code
