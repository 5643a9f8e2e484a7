"""Writes a data root in AppWorld's format: API documents, base databases, tasks, and the list of tasks.

AppWorld's own ``save`` of the API documents, and its tidying of the ground truth, call programs that are not installed with
it. So this module writes the API documents itself and skips the tidying. ``check.py`` plays the tasks.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .content import APPS, accounts
from .evaluation import evaluation, expected
from .task import Task, apps_of
from .world import NOW, World

__all__ = ["write_base", "write_dataset", "write_task"]


def write_base(data: Path, processes: int) -> None:
    """Write api_docs/, base_dbs/ and version.txt below ``data``, which must be AppWorld's data folder already."""
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import CANARY_STRING, DB_VERSION
    from appworld.common.datetime import DateTime
    from appworld.common.utils import freeze_time

    home = ":memory:mini-base"
    models = ModelCollection.load(
        to_db_home_path=home, from_db_home_path=home, load_apps=get_all_apps(), create_db=True
    )
    world = World(models)
    with freeze_time(DateTime(*NOW).subtract(days=1)):
        accounts.fill(world)
        # Each app has a database of its own. Children fill them; this process fills those that are left.
        with ProcessPoolExecutor(
            processes, mp_context=get_context("fork"), initializer=_adopt, initargs=(world,)
        ) as pool:
            jobs = [pool.submit(_fill, app, data) for app in APPS]
            # Meanwhile, this imports every app's APIs, which the tasks need later.
            documents = ApiDocCollection.build(
                load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True
            )
            _describe_apis(models, documents)
            hashes = _save(world, ["admin", "supervisor", "api_docs"], data)
            for job in jobs:
                hashes |= job.result()
    (data / "api_docs" / "standard").mkdir(parents=True)
    for app, entries in documents.items():
        marked = {name: {**entry, "canary_string": CANARY_STRING} for name, entry in entries.items()}
        (data / "api_docs" / "standard" / f"{app}.json").write_text(json.dumps(marked))
    models.close()
    (data / "base_dbs" / "model_hashes.json").write_text(json.dumps(hashes, sort_keys=True))
    (data / "version.txt").write_text(DB_VERSION)


_world: World  # the parent's world, in a child


def _adopt(world: World) -> None:
    global _world
    _world = world


def _fill(app: str, data: Path) -> dict[str, Any]:
    """Fill one app in a forked copy of the world, and save its database."""
    APPS[app].fill(_world)
    return _save(_world, [app], data)


def _save(world: World, apps: list[str], data: Path) -> dict[str, Any]:
    """Save some apps' databases. Returns their counters of changes, in the form of AppWorld's model_hashes.json."""
    from appworld.apps.model_lib import ModelHashHandler
    from appworld.common.utils import vacuum_sqlite_database

    folder, counters = data / "base_dbs", ModelHashHandler.data[world.models.to_db_home_path]
    folder.mkdir(exist_ok=True)
    for app in apps:
        path = str(folder / f"{app}.db")
        world.models[app].SQLModel.db.save("full", path)
        vacuum_sqlite_database(path)
    return {app: dict(counters[app]) for app in apps if counters[app]}


def _describe_apis(models: Any, documents: Any) -> None:
    """Add the rows that ``apis.api_docs`` reads."""
    table = models.api_docs.ApiDoc
    kept = ("path", "method", "description", "parameters", "response_schemas")
    World(models).add(
        table,
        [
            dict(app_name_=app, api_name=name, **{key: entry[key] for key in kept})
            for app, entries in documents.items()
            for name, entry in entries.items()
        ],
    )


def write_task(data: Path, identifier: str, module: Any, variant: tuple[Any, ...]) -> Task:
    """Let a generator make one variant, and write its folder below ``data/tasks`` with all files except test_data.json."""
    import appworld.ground_truth
    from appworld.apps import get_all_apps
    from appworld.apps.admin.models import MainUserMunch
    from appworld.apps.model_lib import get_db_home_path
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import DB_VERSION
    from appworld.common.datetime import DateTime
    from appworld.common.random import set_random_seed
    from appworld.common.utils import freeze_time
    from appworld.task import Task as OfficialTask

    set_random_seed(11, python=True, faker_=True, model_factory=True)
    now = DateTime(*NOW)
    base = get_db_home_path(storage_type="disk", type="base")
    apps = list(get_all_apps())
    models = ModelCollection.load(to_db_home_path=f":memory:mini-{identifier}", from_db_home_path=base, load_apps=apps)
    with freeze_time(now.subtract(hours=1)):
        task: Task = module.make(World(models), *variant)
        main = _write_supervisor(models, task)
        person = MainUserMunch.from_main_user(main)
    official = OfficialTask(
        id=identifier, instruction=task.instruction, supervisor=person, datetime=now.to_datetime(),
        allowed_apps=get_all_apps(skip_admin=True), db_version=DB_VERSION, model_collection=models,
    )  # fmt: skip
    solution = "def solution(apis, requester):\n" + "\n".join(
        "    " + line for step in task.steps for line in step.splitlines()
    )
    apps_needed = apps_of(task.steps)
    # Every num_* key is given, because AppWorld computes a missing one with a program that is not installed.
    metadata = {
        "mode": "full", "difficulty": module.DIFFICULTY, "num_apps": len(apps_needed), "num_apis": solution.count("apis."),
        "num_api_calls": 0, "num_solution_code_lines": len(solution.splitlines()),
    }  # fmt: skip
    official.ground_truth = appworld.ground_truth.GroundTruth(
        task_id=identifier, required_apps=apps_needed, public_data={}, private_data=expected(task.changes),
        answer=task.answer, evaluation_code=evaluation(task.changes), solution_code=solution,
        compiled_solution_code=solution, generator_code="", test_data=None, api_calls=[], metadata=metadata,
    )  # fmt: skip
    appworld.ground_truth.run_ruff = lambda *_, **__: None  # a formatter that is not installed
    official.save(delete_if_exists=True, ground_truth_mode="full", save_model_collection=False)
    models.save(
        str(data / "tasks" / identifier / "dbs"), format="changes", app_names=apps, delete_if_exists=True,
        save_model_hashes=True,
    )  # fmt: skip
    official.close()
    models.close()
    truth = data / "tasks" / identifier / "ground_truth"
    (truth / "steps.json").write_text(json.dumps(task.steps, indent=1))
    (truth / "wrong.json").write_text(json.dumps(task.wrong, indent=1))
    return task


def _write_supervisor(models: Any, task: Task) -> Any:
    """Add the supervisor app's rows: the person who asks, their addresses, cards and passwords, and the instruction."""
    supervisor = models.supervisor
    main = models.admin.MainUser.find_one(first_name=task.supervisor)
    own = supervisor.Supervisor.create_save(
        first_name=main.first_name, last_name=main.last_name, email=main.email, phone_number=main.phone_number,
        birthday=main.birthday, sex=main.sex,
    )  # fmt: skip
    for address in main.user_addresses:
        place = address.global_address
        supervisor.Address.create_save(
            supervisor_id=own.id, name=address.name, street_address=place.street_address, city=place.city,
            state=place.state, country=place.country, zip_code=place.zip_code,
        )  # fmt: skip
    for card in main.payment_cards:
        supervisor.PaymentCard.create_save(
            supervisor_id=own.id, **card.to_dict(skip_field_names=["id", "main_user_id", "balance"])
        )
    for login in main.account_passwords:
        supervisor.AccountPassword.create_save(
            supervisor_id=own.id, account_name=login.account_name, password=login.password
        )
    supervisor.Task.create_save(supervisor_id=own.id, instruction=task.instruction)
    return main


def write_dataset(data: Path, identifiers: list[str]) -> None:
    """Write datasets/mini.txt. It is the only list of tasks, because the other names belong to the benchmark."""
    (data / "datasets").mkdir()
    (data / "datasets" / "mini.txt").write_text("\n".join(identifiers) + "\n")
