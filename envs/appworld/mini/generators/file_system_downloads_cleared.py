"""State change: files of one kind are deleted from one folder, and only there."""

from __future__ import annotations

from ..content.file_system import write
from ..evaluation import Change
from ..people import person
from ..solutions import docs, finish, login, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 1
VARIANTS = (("Tobias", "pdf"), ("Sofia", "csv"), ("Hugo", "png"))


def make(world: World, who: str, kind: str) -> Task:
    """Three more files of the kind in the folder, one of the same kind elsewhere."""
    models, me = world.models.file_system, world.user("file_system", who)
    files = [f"downloads/{name}.{kind}" for name in ("old_roster", "copy_of_map", "untitled_3")]
    write(world, person(who), [(path, "old", 40) for path in [*files, f"documents/passport_scan.{kind}"]])
    folder = f"{me.home_directory_path}downloads/"
    gone = [file for file in models.File.find_all(user_id=me.id)
            if file.path.startswith(folder) and file.path.endswith(f".{kind}")]  # fmt: skip
    steps = [
        docs("file_system", "show_directory", "delete_file"),
        login("file_system"),
        """files = apis.file_system.show_directory(
    directory_path="~/downloads/", entry_type="files", access_token=file_system_token)
print(files)""",
        f"""for path in files:
    if path.endswith(".{kind}"):
        print(apis.file_system.delete_file(file_path=path, access_token=file_system_token))""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f"Delete all .{kind} files from the ~/downloads/ folder of my file system. Keep everything else.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ('directory_path="~/downloads/"', 'directory_path="~/"')),
            "collateral": plus(
                steps,
                f"""other = next(path for path in files if not path.endswith(".{kind}"))
apis.file_system.delete_file(file_path=other, access_token=file_system_token)""",
            ),
        },
        changes=[
            Change("file_system.File", "removed", [{"id": file.id, "path": file.path} for file in gone]),
            Change("file_system.Directory", "updated"),
        ],
    )
