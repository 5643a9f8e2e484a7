"""The accounts of every person in every app, with passwords, addresses and payment cards, and the companies' own accounts."""

from __future__ import annotations

from ..people import PEOPLE, related
from ..world import APPS, World

_CARDS = ("Visa", "MasterCard")


def fill(world: World) -> None:
    """Create the accounts. Everything else refers to them."""
    from appworld.apps.api_lib import CompanyNotifier

    models = world.models
    for app in APPS:
        CompanyNotifier(app).create_accounts(skip_if_exists=True)  # without these, orders and sign-ups raise
    joined = world.on(2022, 1, 10)
    mains = {}
    for i, one in enumerate(PEOPLE):
        main = mains[one.first] = models.admin.MainUser.create_save(
            first_name=one.first, last_name=one.last, email=one.email, phone_number=one.phone,
            birthday=one.birthday, sex=one.sex,
        )  # fmt: skip
        for app in APPS:
            models.admin.AccountPassword.create_save(main_user_id=main.id, account_name=app, password=one.password(app))
            account = dict(first_name=one.first, last_name=one.last, password=one.password(app), created_at=joined)
            account |= {"phone_number": one.phone} if app == "phone" else {"email": one.email}
            if "verified" in models[app].User.properties():
                account["verified"] = True  # otherwise every login answers 422
            if app == "venmo":
                account["venmo_balance"] = 640.0 + 35 * i
            models[app].User.create_save(last_logged_in=joined, **account)
        for j, card in enumerate(_CARDS):
            number = dict(
                owner_name=one.name, card_name=card, card_number=4000_1200_0000_0000 + 1000 * i + 17 * j + 1,
                expiry_year=2028, expiry_month=3 + j, cvv_number=211 + 7 * i + j,
            )  # fmt: skip
            models.admin.PaymentCard.create_save(main_user_id=main.id, balance=2500.0 + 100 * i, **number)
            for app in ("spotify", "venmo", "amazon"):
                models[app].PaymentCard.create_save(user_id=world.user(app, one).id, **number)
    _homes(world, mains)
    for one in PEOPLE:
        for friend in related(one, "friend"):
            models.admin.Friendship.create_save(main_user_id=mains[one.first].id, friend_id=mains[friend.first].id)


def _homes(world: World, mains: dict[str, object]) -> None:
    admin = world.models.admin
    ids = {first: main.id for first, main in mains.items()}  # type: ignore[attr-defined]
    for home in sorted({one.home for one in PEOPLE}):
        residents = [one for one in PEOPLE if one.home == home]
        kind = "single" if len(residents) == 1 else "family" if related(residents[0], "wife") else "roommates"
        residence = admin.Residence.create_save(resident_ids=[ids[one.first] for one in residents], residence_type=kind)
        place = admin.GlobalAddress.create_save(
            residence_id=residence.id, street_address=home, city=residents[0].city, state="Oregon",
            country="United States", zip_code=residents[0].zip_code,
        )  # fmt: skip
        for one in residents:
            admin.UserAddress.create_save(global_address_id=place.id, main_user_id=ids[one.first], name="Home")
    for k, firm in enumerate(sorted({one.firm for one in PEOPLE})):
        staff = [one for one in PEOPLE if one.firm == firm]
        boss = related(next(one for one in staff if related(one, "manager")), "manager")[0]
        company = admin.Company.create_save(name=firm, manager_id=ids[boss.first], weekly_standup_time="10:00")
        office = admin.GlobalAddress.create_save(
            company_id=company.id, street_address=f"{900 + 11 * k} Harbour Street, Floor {k + 2}", city="Tillbury",
            state="Oregon", country="United States", zip_code=97301,
        )  # fmt: skip
        for one in staff:
            admin.CompanyEmployee.create_save(
                company_id=company.id, main_user_id=ids[one.first], is_manager=one is boss
            )
            admin.UserAddress.create_save(global_address_id=office.id, main_user_id=ids[one.first], name="Work")
