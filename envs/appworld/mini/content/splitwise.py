"""Splitwise: groups of roommates, colleagues and friends, with shared expenses and payments."""

from __future__ import annotations

import random

from ..people import PEOPLE, person
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


def fill(world: World) -> None:
    """16 expenses and 3 payments per group. The payer of an expense has a share in it too, as the app requires."""
    rng, splitwise = random.Random("splitwise"), world.models.splitwise
    expenses, shares = [], []
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
            share = round(rng.randint(600, 14000) / len(members)) / 100
            payer, day = world.user("splitwise", rng.choice(members)).id, world.ago(120 - 7 * n, 19)
            expenses.append(
                dict(user_id=payer, payer_id=payer, group_id=group.id, description=rng.choice(_WHAT),
                     amount=round(share * len(members), 2), created_at=day)
            )  # fmt: skip
            shares.append((share, [world.user("splitwise", one).id for one in members]))
        for n in range(3):
            payer, receiver = (world.user("splitwise", one).id for one in rng.sample(members, 2))
            splitwise.Payment.create_save(
                group_id=group.id, user_id=payer, payer_id=payer, receiver_id=receiver, amount=rng.randint(500, 3000) / 100,
                description="In cash", created_at=world.ago(30 - n),
            )  # fmt: skip
    made = world.add(splitwise.Expense, expenses)
    world.add(
        splitwise.ExpenseShare,
        [
            dict(expense_id=one.id, debtor_id=debtor, share_amount=share, created_at=one.created_at)
            for one, (share, debtors) in zip(made, shares, strict=True) for debtor in debtors
        ],
    )  # fmt: skip
    assert all(any(one.first in firsts for _, firsts in GROUPS) for one in PEOPLE)
