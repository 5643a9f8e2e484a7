"""State change: the text messages of one person that start with a certain sign become to-do items, due tomorrow."""

from __future__ import annotations

from ..content.phone import text
from ..evaluation import Change
from ..people import person
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 2
VARIANTS = (("Maren", "Hugo", "Film night"), ("Priya", "Leila", "Spring fair"), ("Sofia", "Idris", "Street party"))
_ASKED = {
    "Film night": ("borrow the projector", "iron the sheet", "find the long cable", "buy maize"),
    "Spring fair": ("print the price tags", "fetch the trestle tables", "count the change"),
    "Street party": ("tell the neighbours", "hang the bunting", "ask Wanda for chairs", "book the fiddler", "buy ice"),
}


def make(world: World, who: str, sender: str, name: str) -> Task:
    """Two apps. Other people use the sign too, and the sender also writes other messages."""
    todoist, me, friend = world.models.todoist, person(who), person(sender)
    user, made = world.user("todoist", who), world.ago(20)
    project = todoist.Project.create_save(user_id=user.id, name=name, color="orange", created_at=made)
    todoist.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=user.id, created_at=made)
    asked = _ASKED[name]
    for k, words in enumerate(asked):
        text(world, friend, me, f"To do: {words}", world.ago(0, 7, 5 + 9 * k))
    text(world, friend, me, "That is all I can think of", world.ago(0, 8, 10))
    text(world, person("Tobias"), me, "To do: water my ferns", world.ago(0, 8, 30))
    text(world, me, friend, "To do: sleep", world.ago(0, 8, 40))
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
        f"""projects = apis.todoist.show_projects(page_limit=50, access_token=todoist_token)
project = next(p for p in projects if p["name"] == {name!r})
for message in asked:
    print(apis.todoist.create_task(project_id=project["project_id"], title=message[len("To do: "):],
        due_date="2024-03-15", access_token=todoist_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'{friend.name} has texted me some messages that start with "To do:". Turn each of them into a task of '
        f'my Todoist project "{name}", due tomorrow; its title is what follows "To do:", word for word.',
        steps=steps,
        wrong={
            "wrong": swapped(steps, ('t["sender"]["phone_number"] == contact["phone_number"] and ', "")),
            "collateral": plus(
                steps,
                'apis.phone.send_text_message(phone_number=contact["phone_number"], message="Done", access_token=phone_token)',
            ),
            "due_today": swapped(steps, ("2024-03-15", "2024-03-14")),
        },
        changes=[
            Change("todoist.Task", "added", [
                {"project_id": project.id, "title": words, "due_date": world.on(2024, 3, 15, hour=0)} for words in asked
            ]),
        ],
    )  # fmt: skip
