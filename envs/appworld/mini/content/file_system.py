"""File System: everybody has a home with documents, downloads, photos and bills."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..people import PEOPLE, Person
from ..world import World

__all__ = ["fill", "write"]

_BILLS = ("electricity", "water", "internet")
_DOWNLOADS = (
    "setup_guide.pdf", "ticket_oslo.pdf", "menu.txt", "song_demo.mp3", "seating_plan.csv", "poster.png",
    "manual_drill.pdf", "notes_backup.txt",
)  # fmt: skip


def write(world: World, who: Person, files: Sequence[tuple[str, str, int]]) -> None:
    """Write files (path below the home, content, age in days) and their missing parent directories."""
    models, user = world.models.file_system, world.user("file_system", who)
    home = user.home_directory_path
    have = set(models.Directory.find_all_take_fields("path", user_id=user.id))
    wanted: list[str] = []
    for path, _, _ in files:
        parts = (home + path).split("/")[:-1]
        wanted += ["/".join(parts[:n]) + "/" for n in range(1, len(parts) + 1)]
    missing = [path for path in dict.fromkeys(wanted) if path not in have]
    old = world.ago(400)
    world.add(models.Directory, [dict(path=path, user_id=user.id, created_at=old, updated_at=old) for path in missing])
    world.add(
        models.File,
        [
            dict(
                path=home + path, user_id=user.id, content=content, created_at=world.ago(age), updated_at=world.ago(age)
            )
            for path, content, age in files
        ],
    )


def fill(world: World) -> None:
    """About 26 files each: bills of six months, photos, downloads, letters."""
    rng = random.Random("file_system")
    for one in PEOPLE:
        files = [
            ("documents/cv.txt", f"{one.name}\n{one.firm}\n", 300),
            ("documents/letters/landlord.txt", "Dear landlord,\n", 200),
        ]
        for kind in rng.sample(_BILLS, 2):
            for month in ("2023-10", "2023-11", "2023-12", "2024-01", "2024-02"):
                due = rng.randint(1900, 9800) / 100
                files.append(
                    (f"bills/{kind}/{month}.txt", f"{kind.title()} bill for {month}\nAmount due: ${due:.2f}\n", 60)
                )
        files += [
            (f"photos/{place}/img_{n:03d}.jpg", "jpeg data", 80) for place in ("lake", "market") for n in range(1, 5)
        ]
        files += [
            (f"downloads/{name}", f"contents of {name}", rng.randint(2, 90)) for name in rng.sample(_DOWNLOADS, 6)
        ]
        write(world, one, files)
