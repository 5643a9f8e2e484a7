"""Gmail: threads of one to three emails with labels, stars and attachments; drafts.

Threads are written in AppWorld's form: the emails, one global thread, and one thread for each person who takes part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ..people import PEOPLE, Person
from ..world import World

__all__ = ["fill", "thread"]

_SUBJECTS = (
    ("Minutes of Monday's meeting", "Please find the minutes below. Shout if I missed anything."),
    ("Draft of the spring schedule", "A first draft. Comments by Friday, please."),
    ("Lost umbrella", "Did anyone take the green one by mistake?"),
    ("Book club pick", "I vote for the one about the lighthouse."),
    ("Parking permits", "The new permits can be collected at the desk."),
    ("Recipe you asked for", "Two onions, a tin of tomatoes, and patience."),
    ("Weekend hike", "Nine at the trailhead? Bring water."),
    ("Budget figures", "The totals of the last quarter, before review."),
    ("Quiet hours", "A reminder that the third floor is a quiet floor after four."),
    ("Photos from Saturday", "They came out better than I thought."),
    ("Printer is back", "It prints again, on both sides even."),
    ("Moving boxes", "I still have six, if you need some."),
)
_REPLIES = ("Thanks, got it.", "Sounds good to me.", "Can we talk tomorrow?", "Noted!", "Happy to help.")


def thread(
    world: World, sender: Person, to: Sequence[Person], subject: str, body: str, sent: Any,
    replies: Sequence[tuple[Person, str]] = (), files: Sequence[tuple[str, str]] = (), **receiver: Any,
) -> dict[str, Any]:  # fmt: skip
    """Write one thread.

    Args:
        world: The world to write to.
        sender: The sender of the first email.
        to: The recipients of the first email.
        subject: The subject of all emails. Replies get "Re: " in front of it.
        body: The text of the first email.
        sent: The time of the first email. Each reply comes an hour after the email before it.
        replies: The sender and text of each reply. A reply goes to everybody else in the thread.
        files: The name and content of each attachment of the first email.
        **receiver: Fields of the recipients' threads: read, label, starred, archived.

    Returns:
        First name -> that person's thread.
    """
    gmail = world.models.gmail
    ids = {one.first: world.user("gmail", one).id for one in (sender, *to)}
    emails: list[Any] = []
    for k, (author, text) in enumerate(((sender, body), *replies)):
        emails.append(gmail.Email.create_save(
            sender_id=ids[author.first], recipient_ids=[ids[name] for name in ids if name != author.first],
            subject=("Re: " if k else "") + subject, body=text, created_at=sent.add(hours=k),
            response_to_email_id=emails[-1].id if emails else None,
        ))  # fmt: skip
    world.add(
        gmail.Attachment,
        [dict(email_id=emails[0].id, file_name=name, file_content=text, created_at=sent) for name, text in files],
    )
    times = dict(created_at=sent, updated_at=emails[-1].created_at)
    common = gmail.GlobalEmailThread.create_save(email_ids=[email.id for email in emails], **times)
    rows = [
        dict(global_email_thread_id=common.id, user_id=user_id, email_ids=[email.id for email in emails], incoming=False,
             outgoing=False, **times, **({"read": True} if first == sender.first else {"read": False, **receiver}))
        for first, user_id in ids.items()
    ]  # fmt: skip
    return dict(zip(ids, world.add(gmail.UserEmailThread, rows), strict=True))


def fill(world: World) -> None:
    """11 threads begun by each person, 3 drafts each."""
    rng, gmail = random.Random("gmail"), world.models.gmail
    plan = [(rng.randint(1, 90), one, rng.choice(_SUBJECTS)) for one in PEOPLE for _ in range(11)]
    for day, sender, (subject, body) in sorted(plan, key=lambda row: (-row[0], row[1].first)):
        to = rng.sample([other for other in PEOPLE if other is not sender], rng.choice((1, 1, 2, 3)))
        replies = [(rng.choice(to), rng.choice(_REPLIES)) for _ in range(rng.choice((0, 0, 1, 2)))]
        files = [("figures.csv", "quarter,total\n1,1840\n2,2015\n")] if subject == "Budget figures" else []
        thread(
            world, sender, to, subject, body, world.ago(day, rng.randint(7, 18)), replies, files,
            read=rng.random() < 0.6, starred=rng.random() < 0.1, archived=rng.random() < 0.1,
            label=rng.choice((None, None, None, "personal", "work")),
        )  # fmt: skip
    drafts = []
    for one in PEOPLE:
        for k in range(3):
            subject, body = rng.choice(_SUBJECTS)
            other = rng.choice([other for other in PEOPLE if other is not one])
            drafts.append(dict(
                user_id=world.user("gmail", one).id, recipient_ids=[world.user("gmail", other).id], subject=subject,
                body=body, created_at=world.ago(20 - k), updated_at=world.ago(20 - k),
            ))  # fmt: skip
    world.add(gmail.Draft, drafts)
