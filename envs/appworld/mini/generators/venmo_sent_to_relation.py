"""Question: how much was sent to people with one relation since a date. The payments have several pages."""

from __future__ import annotations

from ..people import person, relations
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 2
VARIANTS = (
    ("Maren", "roommate", (2023, 9, 15)),
    ("Callum", "coworker", (2023, 10, 1)),
    ("Sofia", "friend", (2023, 9, 20)),
)


def make(world: World, who: str, relation: str, since: tuple[int, int, int]) -> Task:
    """Two apps: the contacts name the relations, and Venmo has the payments."""
    sent = world.models.venmo.Transaction.find_all(sender_id=world.user("venmo", who).id)
    first = world.on(*since, hour=0)
    answer = sum(
        one.amount for one in sent
        if relation in relations(person(who), person(one.receiver.first_name)) and one.created_at >= first
    )  # fmt: skip
    day = f"{since[0]}-{since[1]:02d}-{since[2]:02d}"
    steps = [
        docs("phone", "search_contacts"),
        docs("venmo", "show_transactions"),
        login("phone", "venmo"),
        paged("contacts", f'apis.phone.search_contacts(relationship="{relation}", access_token=phone_token'),
        paged(
            "sent", f'apis.venmo.show_transactions(direction="sent", min_created_at="{day}", access_token=venmo_token'
        ),
        """emails = {c["email"] for c in contacts}
counted = [t for t in sent if t["receiver"]["email"] in emails]
for t in counted:
    print(t["created_at"], t["receiver"]["name"], t["amount"])""",
        finish('round(sum(t["amount"] for t in counted), 2)'),
    ]
    return Task(
        supervisor=who,
        instruction=f"How many dollars have I sent on Venmo, all together, to those who are {relation}s of mine according to my "
        f"phone's contacts, since {first.strftime('%B')} {since[2]}, {since[0]} (that day included)?",
        answer=round(answer, 2),
        steps=steps,
        wrong={
            "wrong": swapped(steps, ('direction="sent"', 'direction="received"'), ('t["receiver"]', 't["sender"]')),
            "collateral": plus(
                steps, 'apis.venmo.like_transaction(transaction_id=sent[0]["transaction_id"], access_token=venmo_token)'
            ),
            "first_page": swapped(steps, ("range(40)", "range(1)"), ("page_limit=20", "page_limit=5")),
        },
    )
