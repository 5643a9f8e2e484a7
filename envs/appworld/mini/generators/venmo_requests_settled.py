"""State change: pending payment requests are approved or denied, depending on who sent them."""

from __future__ import annotations

from ..evaluation import Change
from ..people import PEOPLE, person, relations
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 3
VARIANTS = (("Tobias", "roommate"), ("Callum", "coworker"), ("Sofia", "friend"))


def make(world: World, who: str, relation: str) -> Task:
    """Two apps: the contacts name the relations. Each person sends two requests, so that there are more than five."""
    venmo, me = world.models.venmo, world.user("venmo", who)
    world.add(
        venmo.PaymentRequest,
        [
            dict(sender_id=world.user("venmo", one).id, receiver_id=me.id, amount=7.25 + 3 * k + n,
                 description=what, created_at=world.ago(2 + n), updated_at=world.ago(2 + n))
            for k, one in enumerate(PEOPLE) if one.first != who
            for n, what in enumerate(("popcorn", "half of the cab"))
        ],
    )  # fmt: skip
    emails = {one.email for one in PEOPLE if relation in relations(person(who), one)}
    pending = [one for one in venmo.PaymentRequest.find_all(receiver_id=me.id) if one.pending]
    asked = {one.id: one.sender.email in emails for one in pending}
    steps = [
        docs("venmo"),
        docs("venmo", "show_received_payment_requests", "approve_payment_request", "deny_payment_request"),
        docs("phone", "search_contacts"),
        login("phone", "venmo"),
        paged("contacts", f'apis.phone.search_contacts(relationship="{relation}", access_token=phone_token'),
        'emails = {c["email"] for c in contacts}\nprint(emails)',
        paged("requests", 'apis.venmo.show_received_payment_requests(status="pending", access_token=venmo_token'),
        'for r in requests:\n    print(r["payment_request_id"], r["sender"]["email"], r["amount"], r["description"])',
        """for r in requests:
    if r["sender"]["email"] in emails:
        apis.venmo.approve_payment_request(payment_request_id=r["payment_request_id"], access_token=venmo_token)
    else:
        apis.venmo.deny_payment_request(payment_request_id=r["payment_request_id"], access_token=venmo_token)""",
        'print(apis.venmo.show_received_payment_requests(status="pending", access_token=venmo_token))',
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f"Approve all pending Venmo payment requests from those who are {relation}s of mine according to my phone's "
        "contacts, and deny all the other pending ones that I have received.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("page_index=page_index, page_limit=20", "page_index=page_index, page_limit=5"),
                             ("range(40)", "range(1)")),
            "collateral": plus(
                steps,
                'apis.venmo.create_transaction(receiver_email=requests[0]["sender"]["email"], amount=1, '
                'description="thanks", access_token=venmo_token)',
            ),
            "others_left": swapped(steps, (
                "    else:\n"
                '        apis.venmo.deny_payment_request(payment_request_id=r["payment_request_id"], access_token=venmo_token)',
                "",
            )),
        },
        changes=[
            Change("venmo.PaymentRequest", "updated", [
                {"id": one.id, "approved": asked[one.id], "denied": not asked[one.id]} for one in pending
            ], ignored=("approved_at", "denied_at")),
            Change("venmo.Transaction", "added", [
                {"sender_id": me.id, "receiver_id": one.sender_id, "amount": one.amount, "description": one.description}
                for one in pending if asked[one.id]
            ]),
            Change("venmo.User", "updated"),
            Change("venmo.Notification", "added"),
        ],
    )  # fmt: skip
