"""State change: the attachments of all emails with a label are saved as files. There are more than five threads."""

from __future__ import annotations

from ..content.gmail import thread
from ..evaluation import Change
from ..people import PEOPLE, person
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 2
VARIANTS = (("Priya", "receipts", "documents"), ("Callum", "survey", "downloads"), ("Leila", "garden", "documents"))
_ITEMS = ("bench", "lantern", "trellis", "gravel", "paint", "hinges", "rope")


def make(world: World, who: str, label: str, folder: str) -> Task:
    """Two apps. Six threads carry the label, one has two attachments, one none."""
    me = world.user("file_system", who)
    senders = [one for one in PEOPLE if one.first != who]
    saved = []
    for k, item in enumerate(_ITEMS):
        names = {1: [f"{item}_front.txt", f"{item}_back.txt"], 4: []}.get(k, [f"{item}_{k + 20}.txt"])
        files = [(name, f"{item}, page of {name}, total {17 * k + 9}.40") for name in names]
        labelled = k != 5
        thread(
            world, senders[k % 3], [person(who)], f"About the {item}", f"Here is what I have on the {item}.",
            world.ago(3 + 2 * k, 11), files=files, read=k > 2, label=label if labelled else None,
        )  # fmt: skip
        saved += files if labelled else []
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
        f"""print(apis.file_system.show_directory(
    directory_path="~/{folder}/", entry_type="files", access_token=file_system_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'Save the attachments of all emails in my Gmail inbox that are labelled "{label}" in the ~/{folder}/ '
        "folder of my file system, under the names they have.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("range(40)", "range(1)"), ("page_limit=20", "page_limit=5")),
            "collateral": plus(
                steps,
                'apis.gmail.mark_thread_archived(email_thread_id=threads[0]["email_thread_id"], access_token=gmail_token)',
            ),
        },
        changes=[
            Change("file_system.File", "added", [
                {"path": f"{me.home_directory_path}{folder}/{name}", "content": content} for name, content in saved
            ]),
            Change("file_system.Directory", "updated"),
            Change("gmail.Attachment", "updated"),
        ],
    )  # fmt: skip
