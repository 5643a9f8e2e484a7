"""Amazon: sellers, products, reviews; addresses, orders, carts and wish lists of everybody."""

from __future__ import annotations

import random

from ..people import PEOPLE
from ..world import World

TYPES = {
    "desk lamp": ("Lumo", 18, 60), "water bottle": ("Streamline", 9, 35), "notebook": ("Foliant", 4, 22),
    "backpack": ("Trailhead", 32, 120), "headphones": ("Aurora", 25, 180), "kettle": ("Ember", 20, 75),
    "yoga mat": ("Balance", 14, 55), "board game": ("Meeple", 15, 65),
}  # fmt: skip
_MAKES = ("One", "Plus", "Mini", "Pro", "Classic", "Eco", "Studio", "Go")
_COLORS = ("black", "white", "teal", "mustard")
_SELLERS = (
    "Northgate Goods",
    "Brightside Supply",
    "Hearth & Co",
    "Willow Traders",
    "Kestrel Outfitters",
    "Meridian Mart",
)
_SAYS = (
    (5, "Lovely", "Exactly as described."),
    (4, "Good", "Does what it should."),
    (3, "Fine", "Nothing special."),
    (2, "Hm", "Feels flimsy."),
)


def fill(world: World) -> None:
    """64 products in 8 types, 96 reviews; 11 to 14 orders per person."""
    rng, amazon = random.Random("amazon"), world.models.amazon
    sellers = world.add(amazon.Seller, [dict(name=name) for name in _SELLERS])
    world.add(amazon.Deliverer, [dict(name=name) for name in ("UPS", "USPS", "FedEx")])
    world.add(amazon.Promo, [dict(type="percent", code="SPR10", min_amount=30.0, discount=10.0)])
    products = world.add(
        amazon.Product,
        [
            dict(product_type=kind, name=f"{brand} {make} {kind.title()}", description=f"A {kind} by {brand}.",
                 seller_id=rng.choice(sellers).id, price=rng.randint(low * 100, high * 100) / 100,
                 delivery_days=rng.randint(1, 9), inventory_quantity=rng.randint(12, 60), weight=rng.randint(20, 300) / 100,
                 length=rng.randint(40, 200) / 10, width=rng.randint(30, 120) / 10, height=rng.randint(20, 90) / 10,
                 color=rng.choice(_COLORS), relative_size=rng.choice(("small", "medium", "large")))
            for kind, (brand, low, high) in TYPES.items() for make in _MAKES
        ],
    )  # fmt: skip
    users = [world.user("amazon", one) for one in PEOPLE]
    reviews = []
    for product in products:
        for user in rng.sample(users, rng.choice((1, 1, 2))):
            rating, title, text = rng.choice(_SAYS)
            reviews.append(dict(product_id=product.id, user_id=user.id, is_verified=False, rating=rating, title=title,
                                text=text, created_at=world.ago(rng.randint(300, 500))))  # fmt: skip
    world.add(amazon.ProductReview, reviews)
    for one, user in zip(PEOPLE, users, strict=True):
        main = world.models.admin.MainUser.find_one(first_name=one.first)
        addresses = world.add(
            amazon.Address,
            [
                dict(user_id=user.id, name=home.name, street_address=place.street_address, city=place.city, state=place.state,
                     country=place.country, zip_code=place.zip_code)
                for home in main.user_addresses for place in [home.global_address]
            ],
        )  # fmt: skip
        cards = user.payment_cards
        for day in sorted((rng.randint(5, 330) for _ in range(rng.randint(11, 14))), reverse=True):
            card, address = rng.choice(cards), rng.choice(addresses)
            items = [
                (product, rng.choice((1, 1, 1, 2, 3))) for product in rng.sample(products, rng.choice((1, 1, 2, 3)))
            ]
            order = amazon.Order.create_save(
                user_id=user.id, address_id=address.id, tax=round(sum(p.price * n for p, n in items) / 10, 2), delivery_fee=5.0,
                payment_card_id=card.id, payment_card_digits=card.last_four_digits, address_text=address.text,
                created_at=world.ago(day, 12),
            )  # fmt: skip
            arrived = world.ago(day, 12).add(days=4)
            world.add(
                amazon.OrderItem,
                [
                    dict(order_id=order.id, product_id=product.id, ordered_quantity=count, returned_quantity=0,
                         gift_wrap_quantity=0, price=product.price, expected_delivery_at=arrived, delivered_at=arrived)
                    for product, count in items
                ],
            )  # fmt: skip
        chosen = rng.sample(products, 12)
        world.add(amazon.CartEntry, [dict(user_id=user.id, product_id=one.id, quantity=1) for one in chosen[:2]])
        world.add(amazon.WishListEntry, [dict(user_id=user.id, product_id=one.id, quantity=1) for one in chosen[2:]])
