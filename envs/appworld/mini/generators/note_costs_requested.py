"""State change: a note says who owes what. Those who have not paid yet get a payment request, and the note gets a line."""

from __future__ import annotations

from ..evaluation import Change
from ..people import person
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 3
VARIANTS = (
    ("Maren", "Cabin weekend",
     (("Tobias", 42.5, False), ("Sofia", 38.75, True), ("Hugo", 51.2, False), ("Leila", 17.4, False))),
    ("Callum", "Kayak hire",
     (("Sofia", 26.8, True), ("Hugo", 26.8, False), ("Leila", 31.45, False), ("Maren", 12.9, True))),
    ("Idris", "Concert tickets",
     (("Hugo", 64.3, False), ("Priya", 48.15, True), ("Tobias", 55.6, False), ("Maren", 29.99, False))),
)  # fmt: skip


def make(world: World, who: str, title: str, costs: tuple[tuple[str, float, bool], ...]) -> Task:
    """Three apps: first names in the note, addresses in the contacts, requests in Venmo."""
    me = world.user("venmo", who)
    content = "Everyone's part:\n" + "\n".join(
        f"- {first}: ${amount:.2f}{' (has paid)' if paid else ''}" for first, amount, paid in costs
    )
    day = world.ago(6)
    note = world.models.simple_note.Note.create_save(
        user_id=world.user("simple_note", who).id, title=title, content=content, tags=["money"], pinned=False,
        created_at=day, updated_at=day,
    )  # fmt: skip
    owed = [(world.user("venmo", person(first)).id, amount) for first, amount, paid in costs if not paid]
    steps = [
        docs("simple_note", "search_notes", "show_note", "add_content_to_note"),
        docs("venmo"),
        docs("venmo", "create_payment_request"),
        docs("phone", "search_contacts"),
        login("simple_note", "phone", "venmo"),
        f"""notes = apis.simple_note.search_notes(query={title!r}, page_limit=20, access_token=simple_note_token)
note = next(n for n in notes if n["title"] == {title!r})
content = apis.simple_note.show_note(note_id=note["note_id"], access_token=simple_note_token)["content"]
print(content)""",
        """owed = {}
for line in content.splitlines():
    if line.startswith("- ") and "(has paid)" not in line:
        name, amount = line[2:].split(": $")
        owed[name] = float(amount)
print(owed)""",
        paged("contacts", "apis.phone.search_contacts(access_token=phone_token"),
        """emails = {c["first_name"]: c["email"] for c in contacts if c["first_name"] in owed}
print(emails)""",
        f"""for name, amount in owed.items():
    print(apis.venmo.create_payment_request(
        user_email=emails[name], amount=amount, description={title!r}, access_token=venmo_token))""",
        """print(apis.simple_note.add_content_to_note(note_id=note["note_id"], append_or_prepend="append",
    added_content="Requests sent.", access_token=simple_note_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'My note "{title}" in Simple Note lists what everyone owes me. Send each of those who have not paid yet a '
        f'Venmo request for their part, with the description "{title}", and then add "Requests sent." as a new last line to '
        "the note. I have all of them in my phone's contacts.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, (' and "(has paid)" not in line', ""),
                             ("float(amount)", "float(amount.split()[0])")),
            "collateral": plus(
                steps,
                'apis.simple_note.update_note(note_id=note["note_id"], tags=["money", "done"], access_token=simple_note_token)',
            ),
            "paid_instead": swapped(steps, ("create_payment_request", "create_transaction"), ("user_email=", "receiver_email=")),
        },
        changes=[
            Change("venmo.PaymentRequest", "added", [
                {"sender_id": me.id, "receiver_id": receiver, "amount": amount, "description": title}
                for receiver, amount in owed
            ]),
            Change("venmo.Notification", "added"),
            Change("simple_note.Note", "updated", [{"id": note.id, "content": f"{content}\nRequests sent."}]),
        ],
    )  # fmt: skip
