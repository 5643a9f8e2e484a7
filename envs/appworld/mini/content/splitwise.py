"""Splitwise: groups of roommates, of colleagues and of friends; expenses split evenly or not; payments."""

from __future__ import annotations

import random

from ..people import PEOPLE, Person, person
from ..world import World

GROUPS = (
    ("Copperbeech flat", ("Maren", "Tobias", "Priya")),
    ("Saltmarsh flat", ("Hugo", "Idris")),
    ("Larkfield lunches", ("Leila", "Maren", "Callum", "Hugo")),
    ("Ostrander coffee round", ("Sofia", "Tobias", "Priya", "Idris")),
    ("Lake weekend", ("Callum", "Sofia", "Leila", "Tobias", "Maren")),
)
_WHAT = (
    "Groceries", "Internet bill", "Cleaning supplies", "Takeaway", "Petrol", "Firewood", "Coffee beans", "Tickets",
    "Water bill", "Breakfast",
)  # fmt: skip


def expense(
    world: World, group_id: int | None, payer: Person, sharers: list[Person], what: str, cents: int, day: int
) -> None:
    """Write one expense, split evenly over ``sharers`` (who may include the payer, who then owes nothing)."""
    splitwise = world.models.splitwise
    share = round(cents / len(sharers)) / 100
    paid_by = world.user("splitwise", payer).id
    made = splitwise.Expense.create_save(
        user_id=paid_by, payer_id=paid_by, group_id=group_id, description=what, amount=round(share * len(sharers), 2),
        created_at=world.ago(day, 19),
    )  # fmt: skip
    for one in sharers:
        if one is not payer:
            splitwise.ExpenseShare.create_save(
                expense_id=made.id,
                debtor_id=world.user("splitwise", one).id,
                share_amount=share,
                created_at=world.ago(day, 19),
            )


def fill(world: World) -> None:
    """16 expenses and 3 payments per group."""
    rng, splitwise = random.Random("splitwise"), world.models.splitwise
    for k, (name, firsts) in enumerate(GROUPS):
        members = [person(first) for first in firsts]
        group = splitwise.Group.create_save(
            user_id=world.user("splitwise", members[0]).id, name=name, description="", created_at=world.ago(300),
            invitation_code=f"{k}Q7X{k}",
        )  # fmt: skip
        world.add(
            splitwise.GroupMember,
            [
                dict(group_id=group.id, user_id=world.user("splitwise", one).id, joined_at=world.ago(300))
                for one in members
            ],
        )
        for n in range(16):
            expense(
                world, group.id, rng.choice(members), members, rng.choice(_WHAT), rng.randint(600, 14000), 120 - 7 * n
            )
        for n in range(3):
            payer, receiver = (world.user("splitwise", one).id for one in rng.sample(members, 2))
            splitwise.Payment.create_save(
                group_id=group.id, user_id=payer, payer_id=payer, receiver_id=receiver, amount=rng.randint(500, 3000) / 100,
                description="In cash", created_at=world.ago(30 - n),
            )  # fmt: skip
    assert all(any(one.first in firsts for _, firsts in GROUPS) for one in PEOPLE)
