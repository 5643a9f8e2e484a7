"""The world before any task: all accounts, and the content that several scenarios need."""

import random

from .world import APPS, PEOPLE, World

_ARTISTS = {"Marlow Finch": "folk", "Neon Quarry": "synthwave", "Lua Tavares": "bossa nova", "Pale Estuary": "shoegaze"}
_PRODUCTS = {"desk lamp": 18, "notebook": 4, "backpack": 32, "kettle": 20}  # kind -> the lowest price in dollars


def fill(world: World) -> None:
    from appworld.apps.api_lib import CompanyNotifier

    models, joined = world.models, world.ago(800)
    for app in APPS:
        CompanyNotifier(app).create_accounts(skip_if_exists=True)  # without these, sign-ups raise
    for i, one in enumerate(PEOPLE):
        main = models.admin.MainUser.create_save(
            first_name=one.first, last_name=one.last, email=one.email, phone_number=one.phone,
            birthday=f"19{80 + i}-0{i + 1}-17", sex=one.sex,
        )  # fmt: skip
        for app in APPS:
            models.admin.AccountPassword.create_save(main_user_id=main.id, account_name=app, password=one.password(app))
            account = dict(first_name=one.first, last_name=one.last, password=one.password(app), created_at=joined)
            account |= {"phone_number": one.phone} if app == "phone" else {"email": one.email}
            if "verified" in models[app].User.properties():
                account["verified"] = True  # otherwise every login answers 422
            models[app].User.create_save(last_logged_in=joined, **account)
    for content in (_amazon, _files, _phone, _spotify):
        content(world)


def _amazon(world: World) -> None:
    """24 products; six on each wish list, one in each cart."""
    rng, amazon = random.Random("amazon"), world.models.amazon
    seller = amazon.Seller.create_save(name="Northgate Goods")
    products = world.add(
        amazon.Product,
        [
            dict(product_type=kind, name=f"{make} {kind.title()}", description=f"A {kind}.", seller_id=seller.id,
                 price=rng.randint(low * 100, low * 400) / 100, delivery_days=3, inventory_quantity=40, weight=1.0,
                 length=20.0, width=10.0, height=5.0)
            for kind, low in _PRODUCTS.items() for make in ("Lumo", "Plain", "Pro", "Classic", "Eco", "Studio")
        ],
    )  # fmt: skip
    for one in PEOPLE:
        me = world.user("amazon", one).id
        wished = [dict(user_id=me, product_id=product.id, quantity=1) for product in rng.sample(products, 7)]
        world.add(amazon.CartEntry, wished[:1])
        world.add(amazon.WishListEntry, wished[1:])


def _files(world: World) -> None:
    models, old = world.models.file_system, world.ago(400)
    for one in PEOPLE:
        user = world.user("file_system", one)
        home, times = user.home_directory_path, dict(user_id=user.id, created_at=old, updated_at=old)
        have = set(models.Directory.find_all_take_fields("path", user_id=user.id))
        folders = ("/home/", home, f"{home}documents/", f"{home}downloads/")
        world.add(models.Directory, [dict(path=path, **times) for path in folders if path not in have])


def _phone(world: World) -> None:
    world.add(
        world.models.phone.Contact,
        [
            dict(user_id=world.user("phone", one).id, first_name=other.first, last_name=other.last, email=other.email,
                 phone_number=other.phone, relationships=["friend"], created_at=world.ago(500))
            for one in PEOPLE for other in PEOPLE if other is not one
        ],
    )  # fmt: skip


def _spotify(world: World) -> None:
    """48 songs of 4 artists; 26 to 47 of them in each library."""
    rng, spotify = random.Random("spotify"), world.models.spotify
    artists = world.add(
        spotify.Artist,
        [dict(name=name, genre=genre, created_at=world.ago(3000)) for name, genre in _ARTISTS.items()],
    )
    songs = world.add(
        spotify.Song,
        [
            dict(title=f"{first} {second}", artist_ids=[artists[(i + j) % 4].id], genre=artists[(i + j) % 4].genre,
                 duration=rng.randint(125, 390), release_date=world.ago(900 + 8 * i + j))
            for i, first in enumerate(("Paper", "Glass", "Velvet", "Winter", "Silent", "Broken"))
            for j, second in enumerate(("Signal", "Tide", "Bridge", "Compass", "Garden", "Mirror", "River", "Letter"))
        ],
    )  # fmt: skip
    for i, one in enumerate(PEOPLE):
        me, mine = world.user("spotify", one).id, rng.sample(songs, 26 + 3 * i)
        world.add(spotify.UserLibrarySong, [dict(user_id=me, song_id=s.id, created_at=world.ago(90)) for s in mine])
