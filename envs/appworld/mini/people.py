"""The invented people: their names, homes, work and relations.

The domain and the phone numbers are reserved for fiction. ``content/`` fills the people's apps.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ADDRESS_BOOK", "PEOPLE", "Person", "person", "related", "relations"]


@dataclass(frozen=True)
class Person:
    """A person with an account in every app."""

    first: str
    last: str
    sex: str
    birthday: str
    home: str
    city: str
    zip_code: int
    firm: str

    @property
    def name(self) -> str:
        """First and last name."""
        return f"{self.first} {self.last}"

    @property
    def email(self) -> str:
        """The email address, the same in every app."""
        return f"{self.first}.{self.last}@mailbox.example".lower()

    @property
    def phone(self) -> str:
        """The phone number: ten digits, unique."""
        return f"20655501{10 + PEOPLE.index(self)}"

    def password(self, app: str) -> str:
        """The password for an app. No two are the same."""
        return f"{self.last[:3]}-{app[::-1][:4]}-{len(app) * 31 + PEOPLE.index(self) * 17}"


PEOPLE = (
    Person(
        "Maren", "Achterberg", "female", "1991-02-17", "14 Copperbeech Lane", "Tillbury", 97301, "Larkfield Surveys"
    ),
    Person("Tobias", "Lindqvist", "male", "1989-11-03", "14 Copperbeech Lane", "Tillbury", 97301, "Ostrander Press"),
    Person("Priya", "Raghunath", "female", "1993-06-28", "14 Copperbeech Lane", "Tillbury", 97301, "Ostrander Press"),
    Person("Callum", "Oyelaran", "male", "1985-09-12", "208 Millrace Road", "Fennimore", 97318, "Larkfield Surveys"),
    Person("Sofia", "Brandao", "female", "1986-04-05", "208 Millrace Road", "Fennimore", 97318, "Ostrander Press"),
    Person("Hugo", "Vantongeren", "male", "1994-01-30", "3 Saltmarsh Court", "Tillbury", 97305, "Larkfield Surveys"),
    Person("Leila", "Farrokhzad", "female", "1979-12-21", "77 Windmill Close", "Fennimore", 97320, "Larkfield Surveys"),
    Person("Idris", "Kamara", "male", "1992-08-09", "3 Saltmarsh Court", "Tillbury", 97305, "Ostrander Press"),
)

_FRIENDS = (
    ("Maren", "Tobias"), ("Maren", "Sofia"), ("Maren", "Hugo"), ("Maren", "Idris"), ("Tobias", "Callum"),
    ("Tobias", "Idris"), ("Priya", "Leila"), ("Priya", "Hugo"), ("Priya", "Sofia"), ("Callum", "Hugo"),
    ("Callum", "Leila"), ("Sofia", "Leila"), ("Sofia", "Idris"), ("Leila", "Tobias"), ("Hugo", "Idris"),
)  # fmt: skip
_MANAGERS = {"Larkfield Surveys": "Leila", "Ostrander Press": "Sofia"}
_COUPLE = {"Callum": "wife", "Sofia": "husband"}  # first name -> what the other one is to this person

# Contacts without an account in any app: first name, last name, relation.
ADDRESS_BOOK = (
    ("Wanda", "Petrosyan", "dentist"), ("Ruben", "Achterhof", "plumber"), ("Odile", "Marchetti", "neighbor"),
    ("Kenji", "Sutherland", "trainer"), ("Bettina", "Olorunfemi", "landlord"), ("Graham", "Delacroix-Wu", "neighbor"),
)  # fmt: skip


def person(first: str) -> Person:
    """The person with this first name."""
    return next(one for one in PEOPLE if one.first == first)


def relations(me: Person, other: Person) -> list[str]:
    """The relations of ``other`` to ``me``, as the contacts name them: friend, roommate, coworker, manager, husband, wife."""
    found = []
    if me.first in _COUPLE and other.first in _COUPLE:
        found.append(_COUPLE[me.first])
    elif me.home == other.home:
        found.append("roommate")
    if me.firm == other.firm:
        found.append("manager" if _MANAGERS[me.firm] == other.first else "coworker")
    if (me.first, other.first) in _FRIENDS or (other.first, me.first) in _FRIENDS:
        found.append("friend")
    return found


def related(me: Person, relation: str) -> list[Person]:
    """Everybody who has the relation ``relation`` to ``me``.

    >>> [one.first for one in related(person("Maren"), "roommate")]
    ['Tobias', 'Priya']
    """
    return [other for other in PEOPLE if other is not me and relation in relations(me, other)]
