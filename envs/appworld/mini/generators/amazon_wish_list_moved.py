"""State change: the cheap part of a wish list is moved to the cart."""

from __future__ import annotations

from ..evaluation import Change
from ..solutions import docs, finish, login, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 1
VARIANTS = (("Callum", 30), ("Priya", 45), ("Idris", 35))


def make(world: World, who: str, limit: int) -> Task:
    """Records that go from one list of an app to another."""
    amazon, me = world.models.amazon, world.user("amazon", who)
    moved = [one for one in amazon.WishListEntry.find_all(user_id=me.id) if one.product.price < limit]
    steps = [
        docs("amazon", "show_wish_list", "move_product_from_wish_list_to_cart"),
        login("amazon"),
        """wishes = apis.amazon.show_wish_list(access_token=amazon_token)
for w in wishes:
    print(w["product_id"], w["product_name"], w["quantity"], w["price"])""",
        f"""for w in wishes:
    if w["price"] < {limit}:
        print(apis.amazon.move_product_from_wish_list_to_cart(
            product_id=w["product_id"], quantity=w["quantity"], access_token=amazon_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f"Move everything on my Amazon wish list that is priced below ${limit} to my cart.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("apis.amazon.move_product_from_wish_list_to_cart(", "apis.amazon.add_product_to_cart(")),
            "collateral": plus(
                steps,
                f"""dear = next(w for w in wishes if w["price"] > {limit})
apis.amazon.delete_product_from_wish_list(product_id=dear["product_id"], access_token=amazon_token)""",
            ),
        },
        changes=[
            Change("amazon.WishListEntry", "removed", [{"id": one.id} for one in moved]),
            Change("amazon.CartEntry", "added", [
                {"user_id": me.id, "product_id": one.product_id, "quantity": one.quantity} for one in moved
            ]),
        ],
    )  # fmt: skip
