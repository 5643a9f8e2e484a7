"""What the apps hold before any task: a module per app with ``fill(world)``, after ``accounts`` has made everybody's accounts.

No app's content depends on another's, so that they can be filled in any order, or at once.
"""

from __future__ import annotations

from . import accounts, amazon, file_system, gmail, phone, simple_note, splitwise, spotify, todoist, venmo

__all__ = ["APPS", "accounts"]

# The slowest first: they are filled by several processes.
APPS = {
    "amazon": amazon, "gmail": gmail, "spotify": spotify, "splitwise": splitwise, "phone": phone, "todoist": todoist,
    "venmo": venmo, "file_system": file_system, "simple_note": simple_note,
}  # fmt: skip
