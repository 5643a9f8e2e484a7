"""The scenarios: each makes tasks of one kind, with different people and values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .solutions import docs, finish, login, paged
from .task import Change, Task
from .world import PEOPLE, World, person


@dataclass(frozen=True)
class Scenario:
    """One kind of task.

    Attributes:
        difficulty: 1: one app and a few calls; 2: two apps; 3: more apps, and steps that depend on each other.
        make: ``make(world, *variant)`` makes a task. It may add records to the world's start state.
        variants: The arguments of each task: the first name of the person who asks, and values.
    """

    difficulty: int
    make: Callable[..., Task]
    variants: tuple[tuple[Any, ...], ...]


def spotify_genre_count(world: World, who: str, genre: str) -> Task:
    """Question: the answer needs every page of the library, and one more call for each song."""
    steps = [
        docs("spotify", "show_song_library", "show_song"),
        login("spotify"),
        paged("library", "apis.spotify.show_song_library(access_token=spotify_token"),
        f"""count = 0
for entry in library:
    song = apis.spotify.show_song(song_id=entry["song_id"])
    if song["genre"] == "{genre}":
        count += 1
print(count)""",
        finish("count"),
    ]
    return Task(
        instruction=f"How many {genre} songs do I have in my Spotify song library?",
        answer=sum(song.genre == genre for song in world.user("spotify", who).library_songs),
        steps=steps,
        misread=[("range(40)", "range(1)")],
        extra=f'apis.spotify.create_playlist(title="All my {genre}", access_token=spotify_token)',
    )


def amazon_wish_list_moved(world: World, who: str, limit: int) -> Task:
    """Records go from one list of an app to another."""
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
        instruction=f"Move everything on my Amazon wish list that is priced below ${limit} to my cart.",
        steps=steps,
        misread=[("apis.amazon.move_product_from_wish_list_to_cart(", "apis.amazon.add_product_to_cart(")],
        extra=f"""dear = next(w for w in wishes if w["price"] > {limit})
apis.amazon.delete_product_from_wish_list(product_id=dear["product_id"], access_token=amazon_token)""",
        changes=[
            Change("amazon.WishListEntry", "removed", [{"id": one.id} for one in moved]),
            Change("amazon.CartEntry", "added", [
                {"user_id": me.id, "product_id": one.product_id, "quantity": one.quantity} for one in moved
            ]),
        ],
    )  # fmt: skip


def gmail_attachments_saved(world: World, who: str, label: str, folder: str) -> Task:
    """Two apps. Six threads carry the label, more than a page has by default. One has two attachments, one none."""
    gmail, me = world.models.gmail, world.user("gmail", who).id
    saved: dict[str, str] = {}
    senders = [world.user("gmail", one).id for one in PEOPLE if one.first != who]
    for k, item in enumerate(("bench", "lantern", "trellis", "gravel", "paint", "hinges", "rope")):
        names = {1: [f"{item}_front.txt", f"{item}_back.txt"], 4: []}.get(k, [f"{item}_{k + 20}.txt"])
        files = {name: f"{item}, page of {name}, total {17 * k + 9}.40" for name in names}
        sent, labelled = world.ago(3 + 2 * k, 11), k != 5
        email = gmail.Email.create_save(
            sender_id=senders[k % 3], recipient_ids=[me], subject=f"About the {item}",
            body=f"Here is what I have on the {item}.", created_at=sent,
        )  # fmt: skip
        attached = [
            dict(email_id=email.id, file_name=name, file_content=text, created_at=sent) for name, text in files.items()
        ]
        world.add(gmail.Attachment, attached)
        thread = dict(email_ids=[email.id], created_at=sent, updated_at=sent)
        common = gmail.GlobalEmailThread.create_save(**thread).id
        thread |= dict(global_email_thread_id=common, incoming=False, outgoing=False)
        received = dict(user_id=me, read=k > 2, label=label if labelled else None)
        world.add(gmail.UserEmailThread, [thread | dict(user_id=senders[k % 3], read=True), thread | received])
        saved |= files if labelled else {}
    home = world.user("file_system", who).home_directory_path
    steps = [
        docs("gmail"),
        docs("gmail", "show_inbox_threads", "show_thread", "download_attachment"),
        login("gmail", "file_system"),
        paged("threads", f'apis.gmail.show_inbox_threads(label="{label}", access_token=gmail_token'),
        """attachments = []
for t in threads:
    for email in apis.gmail.show_thread(email_thread_id=t["email_thread_id"], access_token=gmail_token)["emails"]:
        attachments.extend(email["attachments"])
print(attachments)""",
        f"""for a in attachments:
    print(apis.gmail.download_attachment(attachment_id=a["id"], download_to_file_path="~/{folder}/" + a["file_name"],
        access_token=gmail_token, file_system_access_token=file_system_token))""",
        finish(),
    ]
    return Task(
        instruction=f'Save the attachments of all emails in my Gmail inbox that are labelled "{label}" in the '
        f'~/{folder}/ folder of my file system, under the names they have.',
        steps=steps,
        misread=[("range(40)", "range(1)"), ("page_limit=20", "page_limit=5")],
        extra="""apis.gmail.mark_thread_archived(email_thread_id=threads[0]["email_thread_id"], \
access_token=gmail_token)""",
        changes=[
            Change("file_system.File", "added", [
                {"path": f"{home}{folder}/{name}", "content": text} for name, text in saved.items()
            ]),
            Change("file_system.Directory", "updated"),
            Change("gmail.Attachment", "updated"),
        ],
    )  # fmt: skip


def phone_texts_to_tasks(world: World, who: str, sender: str, name: str, chores: str) -> Task:
    """Two apps. Another person uses the sign "To do:" too, and the sender also writes other messages."""
    phone, todoist, wanted = world.models.phone, world.models.todoist, chores.split(", ")
    owner = dict(user_id=world.user("todoist", who).id, created_at=world.ago(20))
    project = todoist.Project.create_save(name=name, **owner)
    todoist.ProjectCollaboratorLink.create_save(project_id=project.id, **owner)
    messages = [(sender, who, f"To do: {words}") for words in wanted]
    messages += [(sender, who, "That is all I can think of"), (who, sender, "To do: sleep")]
    messages.append((next(one.first for one in PEOPLE if one.first not in (who, sender)), who, "To do: water my ferns"))
    for k, (author, reader, words) in enumerate(messages):
        ids, sent = [world.user("phone", one).id for one in (author, reader)], world.ago(0, 7, 5 * k)
        common = phone.GlobalTextMessage.create_save(
            sender_id=ids[0], receiver_id=ids[1], message=words, created_at=sent
        )
        world.add(
            phone.UserTextMessage, [dict(global_text_message_id=common.id, user_id=one, created_at=sent) for one in ids]
        )
    steps = [
        docs("phone", "search_contacts", "search_text_messages"),
        docs("todoist", "show_projects", "create_task"),
        login("phone", "todoist"),
        f"""contact = apis.phone.search_contacts(query={sender!r}, access_token=phone_token)[0]
print(contact)""",
        paged(
            "texts", 'apis.phone.search_text_messages(phone_number=contact["phone_number"], access_token=phone_token'
        ),
        """asked = [t["message"] for t in texts
    if t["sender"]["phone_number"] == contact["phone_number"] and t["message"].startswith("To do: ")]
print(asked)""",
        f"""projects = apis.todoist.show_projects(page_limit=20, access_token=todoist_token)
project = next(p for p in projects if p["name"] == {name!r})
for message in asked:
    print(apis.todoist.create_task(project_id=project["project_id"], title=message[len("To do: "):],
        due_date="2024-03-15", access_token=todoist_token))""",
        finish(),
    ]
    return Task(
        instruction=f'{sender} {person(sender).last} has texted me some messages that start with "To do:". Turn each '
        f'of them into a task of my Todoist project "{name}", due tomorrow; its title is what follows "To do:", word '
        'for word.',
        steps=steps,
        misread=[('t["sender"]["phone_number"] == contact["phone_number"] and ', "")],
        extra="""apis.phone.send_text_message(phone_number=contact["phone_number"], message="Done", \
access_token=phone_token)""",
        changes=[
            Change("todoist.Task", "added", [
                {"project_id": project.id, "title": words, "due_date": world.ago(-1, 0)} for words in wanted
            ]),
        ],
    )  # fmt: skip


def note_costs_requested(world: World, who: str, title: str, cents: int) -> Task:
    """Three apps: first names in the note, addresses in the contacts, requests in Venmo. Two of five have paid."""
    others = [one for one in PEOPLE if one.first != who][cents % 3 :][:5]
    costs = [(one, (cents + 735 * k) / 100, k % 3 == 1) for k, one in enumerate(others)]
    content = "Everyone's part:\n" + "\n".join(
        f"- {one.first}: ${amount:.2f}{' (has paid)' if paid else ''}" for one, amount, paid in costs
    )
    note = world.models.simple_note.Note.create_save(
        user_id=world.user("simple_note", who).id, title=title, content=content, tags=["money"], pinned=False,
        created_at=world.ago(6), updated_at=world.ago(6),
    )  # fmt: skip
    steps = [
        docs("simple_note", "search_notes", "show_note", "add_content_to_note"),
        docs("venmo"),
        docs("venmo", "create_payment_request"),
        docs("phone", "search_contacts"),
        login("simple_note", "phone", "venmo"),
        f"""notes = apis.simple_note.search_notes(query={title!r}, page_limit=20, access_token=simple_note_token)
note = next(n for n in notes if n["title"] == {title!r})
content = apis.simple_note.show_note(note_id=note["note_id"], access_token=simple_note_token)["content"]
print(content)""",
        """owed = {}
for line in content.splitlines():
    if line.startswith("- ") and "(has paid)" not in line:
        name, amount = line[2:].split(": $")
        owed[name] = float(amount)
print(owed)""",
        paged("contacts", "apis.phone.search_contacts(access_token=phone_token"),
        """emails = {c["first_name"]: c["email"] for c in contacts if c["first_name"] in owed}
print(emails)""",
        f"""for name, amount in owed.items():
    print(apis.venmo.create_payment_request(
        user_email=emails[name], amount=amount, description={title!r}, access_token=venmo_token))""",
        """print(apis.simple_note.add_content_to_note(note_id=note["note_id"], append_or_prepend="append",
    added_content="Requests sent.", access_token=simple_note_token))""",
        finish(),
    ]
    return Task(
        instruction=f'My note "{title}" in Simple Note lists what everyone owes me. Send each of those who have not '
        f'paid yet a Venmo request for their part, with the description "{title}", and then add "Requests sent." as a '
        "new last line to the note. I have all of them in my phone's contacts.",
        steps=steps,
        misread=[(' and "(has paid)" not in line', ""), ("float(amount)", "float(amount.split()[0])")],
        extra="""apis.simple_note.update_note(note_id=note["note_id"], tags=["money", "done"], \
access_token=simple_note_token)""",
        changes=[
            Change("venmo.PaymentRequest", "added", [
                {"sender_id": world.user("venmo", who).id, "receiver_id": world.user("venmo", one).id, "amount": amount,
                 "description": title}
                for one, amount, paid in costs if not paid
            ]),
            Change("venmo.Notification", "added"),
            Change("simple_note.Note", "updated", [{"id": note.id, "content": f"{content}\nRequests sent."}]),
        ],
    )  # fmt: skip


SCENARIOS = {
    "spotify_genre_count": Scenario(1, spotify_genre_count, (
        ("Tobias", "folk"), ("Callum", "shoegaze"), ("Idris", "bossa nova"), ("Maren", "synthwave"),
    )),
    "amazon_wish_list_moved": Scenario(1, amazon_wish_list_moved, (
        ("Callum", 30), ("Priya", 45), ("Idris", 35), ("Hugo", 40),
    )),
    "gmail_attachments_saved": Scenario(2, gmail_attachments_saved, (
        ("Priya", "receipts", "documents"), ("Callum", "survey", "downloads"), ("Leila", "garden", "documents"),
        ("Tobias", "shed", "downloads"),
    )),
    "phone_texts_to_tasks": Scenario(2, phone_texts_to_tasks, (
        ("Maren", "Hugo", "Film night", "borrow the projector, iron the sheet, find the long cable, buy maize"),
        ("Priya", "Leila", "Spring fair", "print the price tags, fetch the trestle tables, count the change"),
        ("Sofia", "Idris", "Street party", "tell the neighbours, hang the bunting, book the fiddler, buy ice"),
        ("Tobias", "Priya", "Choir tour", "book the coach, print the scores, collect the deposits"),
    )),
    "note_costs_requested": Scenario(3, note_costs_requested, (
        ("Maren", "Cabin weekend", 4250), ("Callum", "Kayak hire", 2680), ("Idris", "Concert tickets", 6432),
        ("Priya", "Birthday dinner", 1815),
    )),
}  # fmt: skip
