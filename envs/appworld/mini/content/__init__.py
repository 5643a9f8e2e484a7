"""The apps' content before any task. Each app has a module with ``fill(world)``, to be called after ``accounts.fill``.

No app's content depends on another's, so the apps can be filled in any order or in parallel.
"""

from __future__ import annotations

from . import accounts, amazon, file_system, gmail, phone, simple_note, splitwise, spotify, todoist, venmo

__all__ = ["APPS", "accounts"]

# The slowest come first, because several processes fill them.
APPS = {
    "amazon": amazon, "gmail": gmail, "spotify": spotify, "splitwise": splitwise, "phone": phone, "todoist": todoist,
    "venmo": venmo, "file_system": file_system, "simple_note": simple_note,
}  # fmt: skip
