import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import numpy as np
import pytest

from eh_gym.errors import ConfigError
from eh_gym.ranges import Range, check_fields


@dataclass(frozen=True)
class Sizes:
    count: Annotated[int, Range(1, 9)] = 1
    share: Annotated[float, Range(0, above=True)] = 1.0
    cap: Annotated[float, Range(2, zero=True)] = 0.0
    limit: Annotated[int | None, Range(1)] = None
    free: int = -1
    kind: Literal["mean", "max"] = "mean"
    on: bool = True


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({"count": wrong}, "count must be a whole number >= 1 and <= 9, got ") for wrong in (0, 10**400, "3", True)),
        *(({"share": wrong}, "share must be a number > 0, got ") for wrong in (0.0, math.nan, "1", np.float32(0))),
        ({"share": math.inf}, "share must be a number > 0 and finite, got inf"),
        ({"cap": 1.0}, "cap must be a number, 0 or >= 2, got 1.0"),
        ({"limit": 0}, "limit must be a whole number >= 1 or None, got 0"),
        ({"free": None}, "free must be a whole number, got None"),
        ({"kind": "p50"}, "kind must be one of 'mean', 'max', got 'p50'"),
        ({"on": 1}, "on must be True or False, got 1"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_what_it_may_be_and_what_to_change(values, message):
    name = next(iter(values))
    with pytest.raises(ConfigError) as refused:
        check_fields(Sizes(**values))
    assert str(refused.value).startswith(message)
    assert str(refused.value).endswith(f"; change {name}")
    with pytest.raises(ConfigError, match=f"^sizes.{name} must be .*; change --{name}$"):
        check_fields(Sizes(**values), "sizes.", lambda name: f"--{name}")


def test_numpys_numbers_are_kept_as_pythons_and_whole_numbers_as_floats():
    sizes = Sizes(count=np.int64(3), share=np.float32(0.5), cap=4, limit=np.int32(7))
    check_fields(sizes)
    assert sizes == Sizes(3, 0.5, 4.0, 7)
    assert json.loads(json.dumps(asdict(sizes)))["limit"] == 7
    assert [type(value) for value in (sizes.count, sizes.share, sizes.cap, sizes.limit)] == [int, float, float, int]
