"""Answers for tiny models."""

import json
import re
from collections.abc import Iterator
from typing import Any

from .players import TABLES

_KEPT, _DROPPED = (TABLES["brief"][name].split() for name in ("kept", "dropped"))
_ASIDE = r"Connection is .*|\(These are .*|[¹²³⁴]|They will consider .*|Customer name.*?2002|\.(?=\s|$)"


def brief(text: str) -> str:
    """A ticket or an answer in lower case, without emoji and filling words; of a record, what a repair needs."""
    if text[:1] in ("[", "{"):
        text = " ".join(f"{name} {value}" for name, value in _fields(json.loads(text)) if name in _KEPT)
    words = re.sub(r"[^a-z0-9.\-]+", " ", re.sub(_ASIDE, "", text).lower()).split()
    return " ".join(word for word in words if word not in _DROPPED)


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    for item in record if isinstance(record, list) else [record]:
        for name, value in item.items() if isinstance(item, dict) else ():
            yield from _fields(value) if isinstance(value, dict) else [(name, value)]
