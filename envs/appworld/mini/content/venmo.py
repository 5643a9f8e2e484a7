"""Venmo: friends, two hundred payments, payment requests in every state, likes and comments."""

from __future__ import annotations

import random

from ..people import PEOPLE, relations
from ..world import World

_WHAT = (
    "groceries", "taxi home", "cinema tickets", "lunch", "electricity", "concert", "train fare", "birthday gift",
    "pizza night", "rent share",
)  # fmt: skip


def fill(world: World) -> None:
    """25 payments sent per person, some private; 5 requests sent per person, of which 3 are pending."""
    rng, venmo = random.Random("venmo"), world.models.venmo
    users = {one.first: world.user("venmo", one) for one in PEOPLE}
    world.add(
        venmo.Friendship,
        [
            dict(user_id=users[one.first].id, friend_id=users[friend.first].id, created_at=world.ago(600))
            for one in PEOPLE
            for friend in PEOPLE
            if {"friend", "roommate", "husband", "wife"} & set(relations(one, friend))
        ],
    )
    payments, requests = [], []
    for one in PEOPLE:
        others = [other for other in PEOPLE if other is not one]
        for _ in range(25):
            day = rng.randint(2, 200)
            payments.append((day, dict(
                sender_id=users[one.first].id, receiver_id=users[rng.choice(others).first].id,
                amount=rng.randint(300, 7500) / 100, description=rng.choice(_WHAT), private=rng.random() < 0.2,
                created_at=world.ago(day, rng.randint(8, 21)), updated_at=world.ago(day, 22),
            )))  # fmt: skip
        for k in range(5):
            day = rng.randint(3, 60)
            row = dict(
                sender_id=users[one.first].id, receiver_id=users[rng.choice(others).first].id,
                amount=rng.randint(500, 6000) / 100, description=rng.choice(_WHAT),
                created_at=world.ago(day), updated_at=world.ago(day),
            )  # fmt: skip
            if k >= 3:
                row["approved_at" if k == 3 else "denied_at"] = world.ago(day - 2)
            requests.append((day, row))
    payments.sort(key=lambda pair: -pair[0])
    requests.sort(key=lambda pair: -pair[0])
    made = world.add(venmo.Transaction, [row for _, row in payments])
    world.add(venmo.PaymentRequest, [row for _, row in requests])
    ids = [user.id for user in users.values()]
    world.add(
        venmo.TransactionLike,
        [dict(transaction_id=one.id, user_id=rng.choice(ids), created_at=world.ago(1)) for one in made[::5]],
    )
    world.add(
        venmo.TransactionComment,
        [
            dict(transaction_id=one.id, user_id=rng.choice(ids), comment=rng.choice(("Thanks!", "Got it", "Next time on me")),
                 created_at=world.ago(1))
            for one in made[::7]
        ],
    )  # fmt: skip
