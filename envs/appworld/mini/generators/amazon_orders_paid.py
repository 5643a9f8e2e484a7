"""Question: how much all orders of one year have cost. The first page does not hold all orders."""

from __future__ import annotations

from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 1
VARIANTS = (("Maren", 2023), ("Hugo", 2023), ("Leila", 2024))


def make(world: World, who: str, year: int) -> Task:
    """A sum over the records of one app, by date."""
    orders = world.models.amazon.Order.find_all(user_id=world.user("amazon", who).id)
    answer = round(sum(order.paid_amount for order in orders if order.created_at.year == year), 2)
    steps = [
        docs("amazon", "show_orders"),
        login("amazon"),
        paged("orders", "apis.amazon.show_orders(access_token=amazon_token"),
        f"""paid = [o["paid_amount"] for o in orders if o["created_at"].startswith("{year}")]
print(len(paid), paid)
"""
        + finish("round(sum(paid), 2)"),
    ]
    return Task(
        supervisor=who,
        instruction=f"How many dollars have I paid in total for the Amazon orders that I placed in {year}, everything included?",
        answer=answer,
        steps=steps,
        wrong={
            "wrong": swapped(
                steps, ('o["paid_amount"]', 'sum(i["price"] * i["ordered_quantity"] for i in o["order_items"])')
            ),
            "collateral": plus(
                steps,
                """product = apis.amazon.search_products(query="notebook")[0]
apis.amazon.add_product_to_wish_list(product_id=product["product_id"], access_token=amazon_token)""",
            ),
            "all_years": swapped(steps, (f' if o["created_at"].startswith("{year}")', "")),
        },
    )
