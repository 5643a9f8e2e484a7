"""A world that is being written: AppWorld's models, with a few helpers that content and tasks share.

``root.py`` opens and saves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .people import Person, person

__all__ = ["APPS", "NOW", "World"]

APPS = ("amazon", "file_system", "gmail", "phone", "simple_note", "splitwise", "spotify", "todoist", "venmo")
NOW = (2024, 3, 14, 10, 30, 0)  # a Thursday: the moment at which every task begins


class World:
    """The models of one world.

    Attributes:
        models: AppWorld's ModelCollection, as in ``world.models.spotify.Song``.
    """

    def __init__(self, models: Any) -> None:
        self.models = models

    def user(self, app: str, who: str | Person) -> Any:
        """The account of a person (or a first name) in an app."""
        one = person(who) if isinstance(who, str) else who
        key = {"phone_number": one.phone} if app == "phone" else {"email": one.email}
        found = self.models[app].User.find_one(**key)
        assert found is not None, f"{one.name} has no account in {app}"
        return found

    def ago(self, days: int, hour: int = 9, minute: int = 0) -> Any:
        """A time of day, ``days`` days before the tasks' date (after it if negative), as AppWorld's DateTime."""
        from appworld.common.datetime import DateTime

        return DateTime(*NOW[:3], hour, minute, 0).subtract(days=days)

    def on(self, year: int, month: int, day: int, hour: int = 9, minute: int = 0) -> Any:
        """A date as AppWorld's DateTime."""
        from appworld.common.datetime import DateTime

        return DateTime(year, month, day, hour, minute, 0)

    def add(self, model: Any, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Create and save many records of one model, several times faster than one by one."""
        records = [model.create(**row) for row in rows]
        model.save_all(records)
        return records
