"""State change: a bill in a file becomes an expense that is shared evenly with people of one relation."""

from __future__ import annotations

from ..content.file_system import write
from ..evaluation import Change
from ..people import person, related
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 3
VARIANTS = (
    ("Tobias", "heating", "roommate", 8730),
    ("Hugo", "chimney", "roommate", 6420),
    ("Priya", "heating", "roommate", 7950),
)


def make(world: World, who: str, kind: str, relation: str, cents: int) -> Task:
    """Three apps. Only the last of three bills counts; the cents divide evenly."""
    me = world.user("splitwise", who)
    others = related(person(who), relation)
    files = []
    for month, amount in (("2023-12", cents + 1110), ("2024-01", cents - 570), ("2024-02", cents)):
        words = f"{kind.title()} bill for {month}\nMeter read on the 27th\nAmount due: ${amount / 100:.2f}\n"
        files.append((f"bills/{kind}/{month}.txt", words, 15))
    write(world, person(who), files)
    sharers = [me, *(world.user("splitwise", one) for one in others)]
    assert cents % len(sharers) == 0
    description = f"{kind.title()} in February"
    steps = [
        docs("file_system", "show_directory", "show_file"),
        docs("phone", "search_contacts"),
        docs("splitwise"),
        docs("splitwise", "record_expense"),
        login("file_system", "phone", "splitwise"),
        f'print(apis.file_system.show_directory(directory_path="~/bills/{kind}/", access_token=file_system_token))',
        f"""bill = apis.file_system.show_file(file_path="~/bills/{kind}/2024-02.txt", access_token=file_system_token)["content"]
print(bill)
amount = float(bill.split("Amount due: $")[1])""",
        paged("contacts", f'apis.phone.search_contacts(relationship="{relation}", access_token=phone_token'),
        'emails = [c["email"] for c in contacts]\nprint(emails)',
        f"""print(apis.splitwise.record_expense(description={description!r}, paid_amount=amount, payer_email=profile["email"],
    debtor_emails=[profile["email"], *emails], access_token=splitwise_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f"I have paid our {kind} bill for February 2024; it is in ~/bills/{kind}/ in my file system. Record it on "
        f'Splitwise as an expense named "{description}" that I share equally with all my {relation}s. It shall not belong to '
        "any group.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("2024-02.txt", "2024-01.txt")),
            "collateral": plus(
                steps,
                """apis.splitwise.record_payment(payer_email=emails[0], receiver_email=profile["email"], amount=5,
    access_token=splitwise_token)""",
            ),
            "without_me": swapped(steps, ('[profile["email"], *emails]', "emails")),
        },
        changes=[
            Change("splitwise.Expense", "added", [
                {"payer_id": me.id, "group_id": None, "description": description, "amount": cents / 100}
            ]),
            Change("splitwise.ExpenseShare", "added", [
                {"expense.description": description, "debtor_id": one.id, "share_amount": cents // len(sharers) / 100}
                for one in sharers
            ]),
            Change("splitwise.Notification", "added"),
        ],
    )  # fmt: skip
