"""State change: a line is added at the end of a note that is found by its title."""

from __future__ import annotations

from ..evaluation import Change
from ..solutions import docs, finish, login, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 1
VARIANTS = (
    ("Priya", "Packing list", "sun hat"),
    ("Sofia", "Plant care", "Basil: every morning"),
    ("Idris", "Words to learn", "petrichor"),
)


def make(world: World, who: str, title: str, line: str) -> Task:
    """One record of one app; the rest of the note must stay as it is."""
    note = world.models.simple_note.Note.find_one(user_id=world.user("simple_note", who).id, title=title)
    steps = [
        docs("simple_note", "search_notes", "show_note", "add_content_to_note"),
        login("simple_note")
        + f"""
notes = apis.simple_note.search_notes(query={title!r}, page_limit=20, access_token=simple_note_token)
note = next(n for n in notes if n["title"] == {title!r})
print(apis.simple_note.show_note(note_id=note["note_id"], access_token=simple_note_token)["content"])
print(apis.simple_note.add_content_to_note(note_id=note["note_id"], append_or_prepend="append",
    added_content={line!r}, access_token=simple_note_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'Add "{line}" as a new last line to my note "{title}" in Simple Note.',
        steps=steps,
        wrong={
            "wrong": swapped(steps, ('"append"', '"prepend"')),
            "collateral": plus(
                steps,
                'apis.simple_note.update_note(note_id=note["note_id"], pinned=not note["pinned"], '
                "access_token=simple_note_token)",
            ),
        },
        changes=[Change("simple_note.Note", "updated", [{"id": note.id, "content": f"{note.content}\n{line}"}])],
    )
