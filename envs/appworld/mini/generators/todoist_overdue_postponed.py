"""State change: the open, overdue tasks of a project get a new due date, which must be computed."""

from __future__ import annotations

from ..evaluation import Change
from ..solutions import docs, finish, login, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 2
VARIANTS = (
    ("Maren", "Move house", "the coming Monday", (2024, 3, 18)),
    ("Tobias", "Choir tour", "this Saturday", (2024, 3, 16)),
    ("Idris", "Allotment", "the last day of this month", (2024, 3, 31)),
)
_TASKS = {
    "Move house": ("Cancel the internet", "Borrow a van", "Pack the books", "Measure the hall", "Return the keys"),
    "Choir tour": ("Book the coach", "Print the scores", "Reserve the hall", "Collect the deposits", "Ask for visas"),
    "Allotment": ("Order compost", "Repair the shed", "Sow the beans", "Pay the fee", "Clear the path"),
}
_STATES = ((5, False), (12, True), (1, False), (-4, False), (20, False))  # days overdue, done


def make(world: World, who: str, name: str, when: str, day: tuple[int, int, int]) -> Task:
    """One app. The project is made for this task. Its done and future tasks must stay as they are."""
    todoist, me = world.models.todoist, world.user("todoist", who)
    made = world.ago(45)
    project = todoist.Project.create_save(user_id=me.id, name=name, color="yellow", created_at=made)
    todoist.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=me.id, created_at=made)
    section = todoist.Section.create_save(project_id=project.id, name="First", order_index=0, created_at=made)
    tasks = world.add(
        todoist.Task,
        [
            dict(project_id=project.id, section_id=section.id if n in (2, 3) else None, user_id=me.id, title=title,
                 description="", due_date=world.ago(days, 0), priority="medium", is_completed=done,
                 order_index=(0, 1, 0, 1, 2)[n], created_at=made)
            for n, (title, (days, done)) in enumerate(zip(_TASKS[name], _STATES, strict=True))
        ],
    )  # fmt: skip
    late = [task for task, (days, done) in zip(tasks, _STATES, strict=True) if days > 0 and not done]
    steps = [
        docs("todoist"),
        docs("todoist", "show_projects", "show_tasks", "update_task"),
        login("todoist"),
        f"""projects = apis.todoist.show_projects(page_limit=50, access_token=todoist_token)
project = next(p for p in projects if p["name"] == {name!r})
print(project["project_id"], project["sections"])""",
        """shown = apis.todoist.show_tasks(
    project_id=project["project_id"], overdue=True, is_completed=False, access_token=todoist_token)
late = shown["no_section_tasks"] + [t for s in shown["sections"] for t in s["tasks"]]
for t in late:
    print(t["task_id"], t["title"], t["due_date"], t["is_completed"])""",
        f"""for t in late:
    print(apis.todoist.update_task(task_id=t["task_id"], due_date="{"-".join(f"{part:02d}" for part in day)}",
        access_token=todoist_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'In my Todoist project "{name}", put off everything that is overdue and not done yet: make {when} its new '
        "due date.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("overdue=True, is_completed=False,", "overdue=True,")),
            "collateral": plus(
                steps, 'apis.todoist.update_task(task_id=late[0]["task_id"], priority="high", access_token=todoist_token)'
            ),
            "no_sections": swapped(steps, (' + [t for s in shown["sections"] for t in s["tasks"]]', "")),
        },
        changes=[
            Change("todoist.Task", "updated", [
                {"id": task.id, "due_date": world.on(*day, hour=0)} for task in late
            ]),
        ],
    )  # fmt: skip
