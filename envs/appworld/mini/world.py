"""The world that is being written: the invented people, and AppWorld's models with a few helpers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

APPS = ("amazon", "file_system", "gmail", "phone", "simple_note", "splitwise", "spotify", "todoist", "venmo")
NOW = (2024, 3, 14, 10, 30, 0)  # a Thursday: the moment at which every task begins


@dataclass(frozen=True)
class Person:
    """A person with an account in every app."""

    first: str
    last: str
    sex: str

    @property
    def email(self) -> str:
        return f"{self.first}.{self.last}@mailbox.example".lower()

    @property
    def phone(self) -> str:
        return f"20655501{10 + PEOPLE.index(self)}"

    def password(self, app: str) -> str:
        return f"{self.last[:3]}-{app[::-1][:4]}-{len(app) * 31 + PEOPLE.index(self) * 17}"


PEOPLE = (  # phone numbers and domain are reserved for fiction
    Person("Maren", "Achterberg", "female"),
    Person("Tobias", "Lindqvist", "male"),
    Person("Priya", "Raghunath", "female"),
    Person("Callum", "Oyelaran", "male"),
    Person("Sofia", "Brandao", "female"),
    Person("Hugo", "Vantongeren", "male"),
    Person("Leila", "Farrokhzad", "female"),
    Person("Idris", "Kamara", "male"),
)


def person(first: str) -> Person:
    return next(one for one in PEOPLE if one.first == first)


class World:
    """One world. `models` is AppWorld's ModelCollection, as in ``world.models.spotify.Song``."""

    def __init__(self, models: Any) -> None:
        self.models = models

    def user(self, app: str, who: str | Person) -> Any:
        one = person(who) if isinstance(who, str) else who
        return self.models[app].User.find_one(**{"phone_number": one.phone} if app == "phone" else {"email": one.email})

    def ago(self, days: int, hour: int = 9, minute: int = 0) -> Any:
        """A time of day, ``days`` days before the tasks' date (after it if negative), as AppWorld's DateTime."""
        from appworld.common.datetime import DateTime

        return DateTime(*NOW[:3], hour, minute, 0).subtract(days=days)

    def add(self, model: Any, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Create and save many records of one model, faster than one by one."""
        records = [model.create(**row) for row in rows]
        model.save_all(records)
        return records
