"""Writes a data root in AppWorld's format: API documents, base databases and tasks.

It writes the API documents itself, because AppWorld's ``save`` calls programs that are not installed with it.
"""

import json
import re
from pathlib import Path
from typing import Any

from . import content
from .scenarios import Scenario
from .task import Task, expected
from .world import NOW, World


def write_base(data: Path) -> None:
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import ModelHashHandler
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import CANARY_STRING, DB_VERSION
    from appworld.common.datetime import DateTime
    from appworld.common.utils import freeze_time, vacuum_sqlite_database

    home, apps = ":memory:mini-base", get_all_apps()
    models = ModelCollection.load(to_db_home_path=home, from_db_home_path=home, load_apps=apps, create_db=True)
    documents = ApiDocCollection.build(load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True)
    with freeze_time(DateTime(*NOW).subtract(days=1)):
        world = World(models)
        content.fill(world)
        kept = ("path", "method", "description", "parameters", "response_schemas")
        world.add(
            models.api_docs.ApiDoc,  # what ``apis.api_docs`` reads
            [
                dict(app_name_=app, api_name=name, **{key: entry[key] for key in kept})
                for app, entries in documents.items()
                for name, entry in entries.items()
            ],
        )
    (data / "base_dbs").mkdir()
    for app in apps:
        path = str(data / "base_dbs" / f"{app}.db")
        models[app].SQLModel.db.save("full", path)
        vacuum_sqlite_database(path)
    counters = {app: dict(ModelHashHandler.data[home][app]) for app in apps}
    hashes = {app: counted for app, counted in counters.items() if counted}
    (data / "base_dbs" / "model_hashes.json").write_text(json.dumps(hashes, sort_keys=True))
    models.close()
    (data / "api_docs" / "standard").mkdir(parents=True)
    for app, entries in documents.items():
        marked = {name: {**entry, "canary_string": CANARY_STRING} for name, entry in entries.items()}
        (data / "api_docs" / "standard" / f"{app}.json").write_text(json.dumps(marked))
    (data / "version.txt").write_text(DB_VERSION)


def write_task(data: Path, identifier: str, scenario: Scenario, variant: tuple[Any, ...]) -> Task:
    """Make one variant of a scenario, and write its folder with all files except test_data.json."""
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
    now, apps = DateTime(*NOW), list(get_all_apps())
    base = get_db_home_path(storage_type="disk", type="base")
    models = ModelCollection.load(to_db_home_path=f":memory:mini-{identifier}", from_db_home_path=base, load_apps=apps)
    with freeze_time(now.subtract(hours=1)):
        task = scenario.make(World(models), *variant)
        main = _write_supervisor(models, variant[0], task.instruction)
    official = OfficialTask(
        id=identifier, instruction=task.instruction, supervisor=MainUserMunch.from_main_user(main),
        datetime=now.to_datetime(), allowed_apps=get_all_apps(skip_admin=True), db_version=DB_VERSION,
        model_collection=models,
    )  # fmt: skip
    solution = "def solution(apis, requester):\n" + "\n".join(
        "    " + line for step in task.steps for line in step.splitlines()
    )
    apps_needed = sorted({*re.findall(r"\bapis\.(\w+)\.", solution)} - {"api_docs", "supervisor"})
    # AppWorld would compute a missing num_* key with a program that is not installed.
    metadata = {
        "mode": "full", "difficulty": scenario.difficulty, "num_apps": len(apps_needed),
        "num_apis": solution.count("apis."), "num_api_calls": 0, "num_solution_code_lines": len(solution.splitlines()),
    }  # fmt: skip
    official.ground_truth = appworld.ground_truth.GroundTruth(
        task_id=identifier, required_apps=apps_needed, public_data={}, private_data=expected(task.changes),
        answer=task.answer, evaluation_code=Path(__file__).with_name("evaluation.py").read_text(),
        solution_code=solution,
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


def _write_supervisor(models: Any, who: str, instruction: str) -> Any:
    supervisor = models.supervisor
    main = models.admin.MainUser.find_one(first_name=who)
    person = supervisor.Supervisor.create_save(
        first_name=main.first_name, last_name=main.last_name, email=main.email, phone_number=main.phone_number,
        birthday=main.birthday, sex=main.sex,
    )  # fmt: skip
    for login in main.account_passwords:
        supervisor.AccountPassword.create_save(
            supervisor_id=person.id, account_name=login.account_name, password=login.password
        )
    supervisor.Task.create_save(supervisor_id=person.id, instruction=instruction)
    return main
