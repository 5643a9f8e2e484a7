import copy
import pickle

import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Dict, Text, flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, create_shared_memory, iterate

from eh_gym.errors import ConfigError
from eh_gym.spaces import UnicodeText


@pytest.mark.parametrize("text", ["", "a", "naïve", "🧭" * 10, "a\nb\t\r\0", "\x1b[31m", "\ud800", np.str_("x")])
def test_contains_any_string_up_to_max_length(text):
    assert text in UnicodeText(10)
    assert (text in UnicodeText(1)) == (len(text) <= 1)


def test_samples_are_contained_seeded_printable_and_partly_beyond_ascii():
    space = UnicodeText(40, seed=7)
    samples = [space.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert all(character.isprintable() or character == "\n" for sample in samples for character in sample)
    assert any(not sample.isascii() for sample in samples)
    assert {len(sample) for sample in samples} >= {0, 40}
    again = UnicodeText(40)
    again.seed(7)
    assert [again.sample() for _ in range(200)] == samples
    assert [UnicodeText(40, seed=8).sample() for _ in range(200)] != samples


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda space: pickle.loads(pickle.dumps(space))])
def test_copies_are_equal_and_go_on_sampling_alike(duplicate):
    space = UnicodeText(30, seed=3)
    space.sample()
    twin = duplicate(space)
    assert twin == space != UnicodeText(31)
    assert twin != Text(30, min_length=0, charset=space.characters)
    assert repr(twin) == "UnicodeText(30)"
    assert [twin.sample() for _ in range(5)] == [space.sample() for _ in range(5)]


@pytest.mark.parametrize("bad", [-1, 2.0])
def test_a_bad_length_is_refused(bad):
    with pytest.raises(ConfigError, match="max_length must be"):
        UnicodeText(bad)


def test_batches_like_gymnasiums_text():
    space = UnicodeText(9, seed=0)
    batched = batch_space(space, 3)
    texts = ["", "ü", "🧭 north"]
    joined = concatenate(space, texts, create_empty_array(space, 3))
    assert joined == tuple(texts)
    assert joined in batched
    assert list(iterate(batched, joined)) == texts
    assert create_empty_array(space, 3) in batched
    assert len(set(batched.sample())) == 3


def test_flattening_is_refused_with_a_reason():
    space = UnicodeText(9)
    assert not space.is_np_flattenable
    for attempt in (
        lambda: flatten(space, "abc"),
        lambda: unflatten(space, np.zeros(9, dtype=np.int32)),
        lambda: flatdim(space),
        lambda: flatten_space(space),
        lambda: flatten_space(Dict(text=space)),
    ):
        with pytest.raises(CustomSpaceError, match="tokenize the text"):
            attempt()
    assert flatdim(Text(9)) == 9  # gymnasium's own Text is left as it was


def test_shared_memory_is_refused_and_the_message_says_how_to_do_without():
    with pytest.raises(CustomSpaceError, match="shared_memory=False"):
        create_shared_memory(UnicodeText(9), n=2)
