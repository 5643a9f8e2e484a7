"""Todoist: an inbox and three projects each, some shared with others; sections, tasks, sub-tasks, labels, comments."""

from __future__ import annotations

import random

from ..people import PEOPLE, related
from ..world import World

PROJECTS = ("Home", "Errands", "Reading", "Work", "Garden", "Side project")
_TASKS = {
    "Home": (
        "Descale the kettle", "Fix the shelf", "Change the bed sheets", "Sort the post", "Clean the oven",
        "Oil the hinges", "Label the fuses",
    ),
    "Errands": (
        "Return library books", "Pick up parcel", "Buy stamps", "Drop off old paint", "Get keys copied",
        "Collect dry cleaning", "Refill soap",
    ),
    "Reading": (
        "Finish the lighthouse novel", "Annotate chapter four", "Order the sequel", "Write a short review",
        "Lend out the atlas", "Sort the shelf",
    ),
    "Work": (
        "Send the invoice", "Prepare slides", "Review the contract", "Book the room", "Update the roster",
        "Archive old files", "Call the printer",
    ),
    "Garden": (
        "Prune the roses", "Sow radishes", "Mend the fence", "Turn the compost", "Order seed potatoes",
        "Clean the gutters",
    ),
    "Side project": (
        "Sketch the logo", "Write the readme", "Find a name", "Ask for feedback", "Set up the mailing list",
        "Record a demo",
    ),
}  # fmt: skip


def fill(world: World) -> None:
    """6 to 7 tasks per project, a third of them done, due from four weeks ago to four weeks from now."""
    rng, todoist = random.Random("todoist"), world.models.todoist
    for one in PEOPLE:
        me, made = world.user("todoist", one), world.ago(120)
        labels = world.add(
            todoist.Label,
            [
                dict(user_id=me.id, name=name, color=color)
                for name, color in (("quick", "green"), ("waiting", "orange"))
            ],
        )
        inbox = todoist.Project.create_save(user_id=me.id, name="Inbox", is_inbox=True, created_at=made)
        todoist.ProjectCollaboratorLink.create_save(project_id=inbox.id, user_id=me.id, created_at=made)
        for k, name in enumerate(rng.sample(PROJECTS, 4)):
            project = todoist.Project.create_save(
                user_id=me.id, name=name, color=rng.choice(("red", "blue", "green")), created_at=made
            )
            members = [me] + ([world.user("todoist", related(one, "friend")[0])] if k == 0 else [])
            world.add(
                todoist.ProjectCollaboratorLink,
                [dict(project_id=project.id, user_id=user.id, created_at=made, is_favorite=k == 1) for user in members],
            )
            sections = world.add(
                todoist.Section,
                [
                    dict(project_id=project.id, name=title, order_index=n, created_at=made)
                    for n, title in enumerate(("Soon", "Later"))
                ],
            )
            tasks = world.add(
                todoist.Task,
                [
                    dict(project_id=project.id, section_id=rng.choice((None, sections[0].id, sections[1].id)), user_id=me.id,
                         title=title, description="", due_date=world.ago(rng.choice((28, 15, 9, 4, 1, -2, -6, -13, -25)), 18),
                         priority=rng.choice(("high", "medium", "low")), is_completed=rng.random() < 0.33, order_index=n,
                         created_at=world.ago(60))
                    for n, title in enumerate(_TASKS[name])
                ],
            )  # fmt: skip
            world.add(
                todoist.SubTask,
                [dict(task_id=tasks[0].id, title=title, priority="low", order_index=n, created_at=world.ago(50))
                 for n, title in enumerate(("Find out how", "Do it"))],
            )  # fmt: skip
            world.add(todoist.TaskLabelLink, [dict(task_id=tasks[n].id, label_id=labels[n].id) for n in range(2)])
            todoist.TaskComment.create_save(
                task_id=tasks[2].id, user_id=me.id, content="Ask before the weekend.", created_at=world.ago(40)
            )
