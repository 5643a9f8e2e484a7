"""UnicodeText, the space of texts that a language model reads and writes."""

from typing import Any, NoReturn

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils.shared_memory import create_shared_memory
from numpy.typing import NDArray

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import is_whole

__all__ = ["UnicodeText"]

# What sample() draws from.
_SAMPLED = "".join(map(chr, range(32, 127))) + "\näßñøçÅŽабвжλΩψשلक中文字日本語한글—“”€→≤😀🚀🧭"
_LONGEST_SAMPLE = 256  # characters


class UnicodeText(Text):
    r"""Any ``str`` of at most ``max_length`` characters. gymnasium's ``Text`` admits only a given set of characters.

    ``sample()`` returns printable text, part of it outside ASCII, of 0 to min(max_length, 256) characters.
    ``flatten`` and AsyncVectorEnv's shared memory raise an error.

    Args:
        max_length: Most characters (Unicode code points, not bytes), >= 0.
        seed: For sampling.

    Raises:
        ConfigError: ``max_length`` is not an integer >= 0.

    Example:
        >>> space = UnicodeText(8)
        >>> space, "naïve 🧭\n" in space, "" in space, "123456789" in space
        (UnicodeText(8), True, True, False)
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        if not is_whole(max_length) or max_length < 0:
            raise ConfigError(f"max_length must be an integer >= 0 (characters), got {max_length!r}")
        super().__init__(int(max_length), min_length=0, charset=_SAMPLED, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a ``str`` of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """Draws a text; ``mask`` and ``probability`` as in ``gymnasium.spaces.Text``, over ``character_list``."""
        if mask is not None or probability is not None:
            return super().sample(mask=mask, probability=probability)
        length = int(self.np_random.integers(min(self.max_length, _LONGEST_SAMPLE) + 1))
        return "".join(_SAMPLED[i] for i in self.np_random.integers(len(_SAMPLED), size=length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]  # as every gymnasium space that compares by value

    @property
    def is_np_flattenable(self) -> bool:
        """Always False."""
        return False


def _not_flattenable(space: UnicodeText, *_: object) -> NoReturn:
    raise CustomSpaceError(
        f"{space!r} admits every character, so it has no flattened form; "
        "tokenize the text instead, or use gymnasium.spaces.Text with a charset where the characters are known"
    )


@create_shared_memory.register(UnicodeText)
def _not_shareable(space: UnicodeText, n: int = 1, ctx: object = None) -> NoReturn:
    raise CustomSpaceError(
        f"{space!r} cannot live in shared memory; pass shared_memory=False to AsyncVectorEnv, "
        "or step the environments in threads with eh_gym.make_vec"
    )


for _function in (flatten, unflatten, flatdim, flatten_space):
    _function.register(UnicodeText, _not_flattenable)
