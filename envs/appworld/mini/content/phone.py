"""Phone: contacts (people, and numbers without an account), text and voice messages, alarms."""

from __future__ import annotations

import random
from typing import Any

from ..people import ADDRESS_BOOK, PEOPLE, Person, relations
from ..world import World

__all__ = ["fill", "text"]

WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday"]
_TEXTS = (
    "Running ten minutes late", "Did you water the plants?", "See you at seven", "Call me when you can",
    "Door code is the old one", "That talk was great", "Can you bring the charger?", "Bus is stuck again",
    "Happy to swap shifts", "Keys are under the pot",
)  # fmt: skip


def text(world: World, sender: Person, receiver: Person, message: str, sent: Any) -> None:
    """Write one text message that both people see."""
    phone = world.models.phone
    ids = [world.user("phone", one).id for one in (sender, receiver)]
    common = phone.GlobalTextMessage.create_save(sender_id=ids[0], receiver_id=ids[1], message=message, created_at=sent)
    world.add(
        phone.UserTextMessage, [dict(global_text_message_id=common.id, user_id=one, created_at=sent) for one in ids]
    )


def fill(world: World) -> None:
    """Each person has contacts for all related people and six others, and 5 alarms. 120 texts and 8 voice messages."""
    rng, phone = random.Random("phone"), world.models.phone
    for i, one in enumerate(PEOPLE):
        me = world.user("phone", one).id
        rows = [
            dict(first_name=other.first, last_name=other.last, email=other.email, phone_number=other.phone,
                 relationships=relations(one, other), birthday=other.birthday,
                 home_address=f"{other.home}, {other.city}, Oregon, {other.zip_code}")
            for other in PEOPLE if other is not one and relations(one, other)
        ] + [
            dict(first_name=first, last_name=last, email=f"{first}.{last}@offices.example".lower(),
                 phone_number=f"50355501{10 * i + k:02d}", relationships=[kind])
            for k, (first, last, kind) in enumerate(ADDRESS_BOOK)
        ]  # fmt: skip
        world.add(phone.Contact, [dict(user_id=me, created_at=world.ago(500), **row) for row in rows])
        wake = rng.choice((6, 7))
        alarms = [
            (f"{wake:02d}:{rng.choice((15, 30, 45))}", WEEKDAYS, "Wake up", True),
            ("09:30", ["saturday", "sunday"], "Lie-in", True),
            ("18:00", ["tuesday", "thursday"], "Gym", rng.random() < 0.5), ("21:45", None, "Take pills", True),
            ("13:20", ["wednesday"], "Water the plants", False),
        ]  # fmt: skip
        world.add(
            phone.Alarm,
            [
                dict(user_id=me, time=time, repeat_days=days, label=label, enabled=on, snooze_minutes=10, vibration=True,
                     created_at=world.ago(100))
                for time, days, label, on in alarms
            ],
        )  # fmt: skip
    for day in range(60, 0, -1):
        for _ in range(2):
            sender, receiver = rng.sample(PEOPLE, 2)
            text(world, sender, receiver, rng.choice(_TEXTS), world.ago(day, rng.randint(8, 22), rng.randint(0, 59)))
    for day in range(8, 0, -1):
        sender, receiver = (world.user("phone", one).id for one in rng.sample(PEOPLE, 2))
        common = phone.GlobalVoiceMessage.create_save(
            sender_id=sender, receiver_id=receiver, message=rng.choice(_TEXTS), created_at=world.ago(day)
        )
        for user_id in (sender, receiver):
            phone.UserVoiceMessage.create_save(
                global_voice_message_id=common.id, user_id=user_id, created_at=world.ago(day)
            )
