"""What a tiny model can learn with: a word for each call, and short answers."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from .calls import Call
from .expert import SCRIPTS
from .world import signatures

_KEPT = frozenset(
    "customer_id line_ids bill_ids bill_id line_id status roaming_enabled contract_end_date data_used_gb data_limit_gb "
    "data_refueling_gb message phone_number".split()
)
_DROPPED = frozenset(
    "a an and are at be been but can cellular card currently details for has have if in is most of or phone that the "
    "their them these they this to user using was will with you your".split()
)
_ASIDE = re.compile(r"Connection is .*|\(These are .*|[¹²³⁴]|They will consider .*|Customer name.*?2002")


@functools.cache
def menu() -> dict[str, Call]:
    """Word -> call. All tickets are of one customer and line, so 43 words are enough."""
    plain = [(name, {}) for name, signature in signatures().items() if not signature.parameters]
    words: dict[str, Call] = {name.replace("_", ""): (name, arguments) for name, arguments in plain}
    owner, app = {"customer_id": "C1001", "line_id": "L1002"}, {"app_name": "messaging"}
    for name in ("get_data_usage", "enable_roaming", "disable_roaming", "resume_line"):
        words[name.replace("_", "")] = (name, owner)
    for number, word in enumerate(("one", "two", "three"), 1):
        words[f"line{word}"] = ("get_details_by_id", {"id": f"L100{number}"})
    words |= {f"grant{name}": ("grant_app_permission", {**app, "permission": name}) for name in ("sms", "storage")}
    return words | {
        "customer": ("get_customer_by_phone", {"phone_number": "555-123-2002"}),
        "bills": ("get_bills_for_customer", {"customer_id": "C1001"}),
        "pay": ("send_payment_request", {"customer_id": "C1001", "bill_id": "B1234321"}),
        "refuel": ("refuel_data", {**owner, "gb_amount": 2.0}),
        "permissions": ("check_app_permissions", app),
        "newmode": ("set_network_mode_preference", {"mode": "4g_5g_preferred"}),
        "oldmode": ("set_network_mode_preference", {"mode": "2g_only"}),
        "transfer": SCRIPTS["transfer"][0],
    }


def word_of(name: str, arguments: dict[str, Any]) -> str:
    """The menu's word for a script's call."""
    return next(word for word, call in menu().items() if call == (name, arguments))


def brief(text: str) -> str:
    """A ticket or an answer in lower case, without emoji and filling words; of a record, what a repair needs."""
    if text[:1] in "[{":
        text = "; ".join(f"{name} {value}" for name, value in _fields(json.loads(text)) if name in _KEPT)
    words = re.sub(r"[^a-z0-9.\-]+", " ", _ASIDE.sub("", text).lower())
    return " ".join(word for word in re.sub(r"\.( |$)", " ", words).split() if word not in _DROPPED)


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    for item in record if isinstance(record, list) else [record]:
        for name, value in item.items() if isinstance(item, dict) else ():
            yield from _fields(value) if isinstance(value, dict) else [(name, value)]
