"""State change: an alarm is set to an earlier time, computed from its present one."""

from __future__ import annotations

from ..evaluation import Change
from ..solutions import docs, finish, login, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 1
VARIANTS = (("Maren", "Wake up", 20), ("Leila", "Lie-in", 45), ("Hugo", "Take pills", 50))


def make(world: World, who: str, label: str, minutes: int) -> Task:
    """One record to find by its label, one field to compute."""
    alarm = world.models.phone.Alarm.find_one(user_id=world.user("phone", who).id, label=label)
    hour, minute = map(int, alarm.time.split(":"))
    earlier = hour * 60 + minute - minutes
    steps = [
        docs("phone", "show_alarms", "update_alarm"),
        login("phone")
        + f"""
alarms = apis.phone.show_alarms(access_token=phone_token, page_limit=20)
alarm = next(a for a in alarms if a["label"] == {label!r})
print(alarm)""",
        f"""hour, minute = map(int, alarm["time"].split(":"))
total = hour * 60 + minute - {minutes}
new_time = f"{{total // 60:02d}}:{{total % 60:02d}}"
print(apis.phone.update_alarm(alarm_id=alarm["alarm_id"], time=new_time, access_token=phone_token))""",
        finish(),
    ]
    other = "Gym" if label != "Gym" else "Wake up"
    return Task(
        supervisor=who,
        instruction=f'Set my "{label}" alarm {minutes} minutes earlier than it is now.',
        steps=steps,
        wrong={
            "wrong": swapped(steps, (f"minute - {minutes}", f"minute + {minutes}")),
            "collateral": plus(
                steps,
                f"""other = next(a for a in alarms if a["label"] == "{other}")
apis.phone.update_alarm(alarm_id=other["alarm_id"], enabled=not other["enabled"], access_token=phone_token)""",
            ),
            "as_new_alarm": swapped(
                steps,
                (
                    'update_alarm(alarm_id=alarm["alarm_id"], time=new_time,',
                    'create_alarm(time=new_time, label=alarm["label"], repeat_days=alarm["repeat_days"],',
                ),
            ),
        },
        changes=[
            Change("phone.Alarm", "updated", [{"id": alarm.id, "time": f"{earlier // 60:02d}:{earlier % 60:02d}"}])
        ],
    )
