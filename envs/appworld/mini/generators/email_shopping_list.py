"""State change: an email asks for numbers of products of some types. The cheapest product of each type is ordered."""

from __future__ import annotations

from ..content.gmail import thread
from ..evaluation import Change
from ..people import person
from ..solutions import docs, finish, login, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 3
VARIANTS = (
    ("Tobias", "Sofia", "For the new office", {"desk lamp": 2, "kettle": 1, "notebook": 4}, "Work", "Visa"),
    ("Leila", "Callum", "Games evening", {"board game": 2, "water bottle": 3}, "Home", "MasterCard"),
    (
        "Idris",
        "Hugo",
        "What the flat lacks",
        {"kettle": 1, "desk lamp": 1, "yoga mat": 2, "headphones": 1},
        "Home",
        "Visa",
    ),
)


def make(world: World, who: str, sender: str, subject: str, items: dict[str, int], place: str, card: str) -> Task:
    """Two apps. The cart is not empty at the start. Its products must be removed and not ordered."""
    amazon, me = world.models.amazon, world.user("amazon", who)
    lines = "\n".join(f"{count} x {kind}" for kind, count in items.items())
    thread(
        world, person(sender), [person(who)], subject,
        f"Hello {who},\n\ncould you order these for us? The cheapest of each kind will do.\n\n{lines}\n\n{sender}",
        world.ago(1, 16), read=True,
    )  # fmt: skip
    cheapest = {kind: min(amazon.Product.find_all(product_type=kind), key=lambda one: one.price) for kind in items}
    address = amazon.Address.find_one(user_id=me.id, name=place)
    paid_with = amazon.PaymentCard.find_one(user_id=me.id, card_name=card)
    bought = {product.id: count for product, count in zip(cheapest.values(), items.values(), strict=True)}
    cart = amazon.CartEntry.find_all(user_id=me.id)
    steps = [
        docs("gmail", "show_inbox_threads", "show_thread"),
        docs("amazon"),
        docs("amazon", "search_products", "add_product_to_cart", "clear_cart", "show_addresses", "place_order"),
        login("gmail", "amazon"),
        f"""threads = apis.gmail.show_inbox_threads(query={subject!r}, page_limit=20, access_token=gmail_token)
thread = next(t for t in threads if t["subject"] == {subject!r})
body = apis.gmail.show_thread(email_thread_id=thread["email_thread_id"], access_token=gmail_token)["emails"][0]["body"]
print(body)""",
        """wanted = {}
for line in body.splitlines():
    if " x " in line:
        count, kind = line.split(" x ")
        wanted[kind] = int(count)
print(wanted)""",
        """chosen = {}
for kind in wanted:
    chosen[kind] = apis.amazon.search_products(product_type=kind, sort_by="+price", page_limit=20)[0]
    print(kind, chosen[kind]["name"], chosen[kind]["price"])""",
        """print(apis.amazon.clear_cart(access_token=amazon_token))
for kind, count in wanted.items():
    apis.amazon.add_product_to_cart(product_id=chosen[kind]["product_id"], quantity=count, access_token=amazon_token)
print(apis.amazon.show_cart(access_token=amazon_token))""",
        f"""addresses = apis.amazon.show_addresses(access_token=amazon_token)
address = next(a for a in addresses if a["name"] == "{place}")
cards = apis.amazon.show_payment_cards(access_token=amazon_token)
card = next(c for c in cards if c["card_name"] == "{card}")
print(address, card)""",
        """print(apis.amazon.place_order(
    payment_card_id=card["payment_card_id"], address_id=address["address_id"], access_token=amazon_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'{sender} has emailed me a shopping list, "{subject}". Order what it says on Amazon, with my {card} '
        f"card and to my {place.lower()} address. Throw out first what is in my cart now.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("print(apis.amazon.clear_cart(access_token=amazon_token))\n", "")),
            "collateral": plus(
                steps,
                """apis.amazon.add_product_to_cart(product_id=next(iter(chosen.values()))["product_id"],
    access_token=amazon_token)""",
            ),
            "dearest": swapped(steps, ("+price", "-price")),
        },
        changes=[
            Change("amazon.CartEntry", "removed", [{"id": one.id} for one in cart]),
            Change("amazon.Order", "added", [
                {"user_id": me.id, "address_id": address.id, "payment_card_id": paid_with.id}
            ]),
            Change("amazon.OrderItem", "added", [
                {"product_id": product, "ordered_quantity": count} for product, count in bought.items()
            ]),
            Change("amazon.Product", "updated"),
            *_confirmation(world, who),
        ],
    )  # fmt: skip


def _confirmation(world: World, who: str) -> list[Change]:
    """The changes that Amazon makes by itself at an order: it writes a receipt to files of its own, and emails it."""
    amazon = {
        app: world.models[app].User.find_one(email="notifications@amazon.com").id for app in ("gmail", "file_system")
    }
    me = world.user("gmail", who).id
    return [
        Change("gmail.Email", "added", [{"sender_id": amazon["gmail"], "recipient_ids": [me]}]),
        Change("gmail.GlobalEmailThread", "added"),
        Change("gmail.UserEmailThread", "added", [{"user_id": one} for one in (amazon["gmail"], me)]),
        Change("gmail.Attachment", "added"),
        Change("file_system.File", "added", [{"user_id": amazon["file_system"]}]),
        Change("file_system.Directory", "added", [{"user_id": amazon["file_system"]}] * 2),
    ]
