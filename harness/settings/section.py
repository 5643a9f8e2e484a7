"""Sections: groups of settings that one part of the program gets whole, and their form as a table.

A section is a frozen dataclass. Beside the type of a setting stand its range, `Changes` where it is not that of its
section, and `FIRST`; below it its description:

    slots: Annotated[int, Range(0), Changes.MACHINE] = 0
    \"\"\"The number of environments played at once.\"\"\"

Nothing else is declared: flags, recipes, ``config.json`` and the reference pages are made from the fields. The settings
of a command are a section, too, whose fields are settings and further sections.
"""

import contextlib
import dataclasses
import enum
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from eh_gym.errors import ConfigError, EHError
from eh_gym.ranges import check_fields, hints_of, near
from envs.make import json_object

T = TypeVar("T")

NO_FLAG = "only recipes and Python programs give the setting"
NoFlag = Annotated[T, NO_FLAG]
"""The type of a setting that has no flag."""

FIRST = "--help shows the flag"
"""Marks a flag that most runs need. ``--help-all`` shows the others, too."""


class Changes(enum.Enum):
    """What another value of a setting changes."""

    RESULT = enum.auto()
    """What is played or learned."""
    DRAWS = enum.auto()
    """Only the random draws. Runs that differ in it are repetitions."""
    EPISODES = enum.auto()
    """Which episodes are played, or in which order, but not the episodes. An evaluation keeps those it has."""
    SETUP = enum.auto()
    """No number. A resumed run keeps its value."""
    MACHINE = enum.auto()
    """Where and how fast it runs; numbers change only by rounding. A resumed run may have another value."""


@dataclasses.dataclass(frozen=True)
class Section:
    """The base class of sections. It checks the types and ranges of the fields. A table may stand for a section in it.

    Raises:
        ConfigError: A value has another type, or is out of its range.
        TypeError: There is no such setting.
    """

    prefix: ClassVar[str] = ""
    """What precedes the settings' names where those of all sections are together, such as in flags."""

    changes: ClassVar[Changes]
    """What each setting without a mark of its own changes. Every section declares it."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, choice = getattr(self, field.name), choice_of(field)
            if isinstance(value, Mapping) and (choice or isinstance(_default(field), Section)):
                value = _part(choice, _default(field), value, f"{field.name}.")
            elif isinstance(value, str) and Path in get_args(hints[field.name]):
                value = Path(value) if value else None
            elif isinstance(value, str) and get_origin(hints[field.name]) is Mapping:
                value = json_object(value, self._flag(field.name))
            if choice:
                choice.check(value)
            object.__setattr__(self, field.name, value)
        check_fields(self, self.prefix, self._flag)

    def _flag(self, name: str) -> str:
        return f"--{self.prefix}{name}".replace("_", "-")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting whose class is chosen by a name, such as the horizon by ``--wrapper``. It is the field's metadata
    ``choice``.

    A table of it has the name, and tables for the classes that may be chosen:

        [horizon]
        wrapper = "elastic"
        [horizon.elastic]
        k0 = 10
        [horizon.linear]  # if --wrapper linear chooses this one
        delta = 0.67

    Attributes:
        flag: The setting that has the name: ``wrapper`` or ``sampler``.
        text: Its description.
        classes: The classes of this project, by their names.
        make: Makes a value with its defaults from a name in `classes` or MODULE:CLASS, or raises a ConfigError.
        name_of: Returns the name for a value.
        check: Raises ConfigError for what can't be a value.
    """

    flag: str
    text: str
    classes: Mapping[str, type]
    make: Callable[[str], Any]
    name_of: Callable[[Any], str]
    check: Callable[[Any], None]

    def named(self, name: str) -> Any:
        if ":" not in name and name not in self.classes:
            raise ConfigError(
                f"--{self.flag} must be one of {', '.join(self.classes)}, or MODULE:CLASS, got {name!r}"
                f"{near(name, self.classes)}"
            )
        return self.make(name)

    def filled(self, value: Any, table: Mapping[str, Any], where: str) -> Any:
        """Returns the value that a table describes. The rest is as in `value`, if that has the same class."""
        name = table.get(self.flag, self.name_of(value))
        made = value if name == self.name_of(value) else self.named(name)
        chosen = (name, self.name_of(made))  # MODULE:CLASS may be one of this project's
        for other, inner in table.items():
            if other == self.flag:
                continue
            if not isinstance(inner, Mapping) or (":" not in other and other not in self.classes):
                known = [self.flag, *(f"{where}{kind}" for kind in self.classes)]
                raise ConfigError(f"no setting {where}{other}{near(where + other, known)}")
            tried = filled(made if other in chosen else self.named(other), inner, f"{where}{other}.")
            made = tried if other in chosen else made
        return made


def settings_in(settings: Any) -> list[dataclasses.Field[Any]]:
    """Returns the fields that are settings. A controller may have others, with ``init=False``, for what it counts."""
    return [field for field in dataclasses.fields(settings) if field.init]


def choice_of(field: dataclasses.Field[Any]) -> Choice | None:
    choice: Choice | None = field.metadata.get("choice")
    return choice


def filled(settings: T, table: Mapping[str, Any], where: str = "") -> T:
    """Returns settings like these, with the values of a table in their places, at every depth.

    The value of a section in the table is a table. `where`, such as ``"loss."``, precedes the names in error messages.
    """
    fields = {field.name: field for field in settings_in(settings)}
    values = {}
    for name, value in table.items():
        if name not in fields:
            raise ConfigError(f"no setting {where}{name}{near(where + name, [where + known for known in fields])}")
        now, choice = getattr(settings, name), choice_of(fields[name])
        if choice or isinstance(now, Section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}{name} must be a table, [{where}{name}], got {value!r}")
            value = _part(choice, now, value, f"{where}{name}.")
        values[name] = value
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, as `leaves` finds it.

    Attributes:
        name: Its name among those of all sections: that of its flag, with underscores.
        path: The names that lead to it in a table.
        value: Its value.
        owner: The class that has it.
        field: Its name in that class.
        panel: The section or choice whose panel in ``--help`` shows it; empty for the command's own.
        choice: What it chooses, if it chooses a class.
    """

    name: str
    path: tuple[str, ...]
    value: Any
    owner: type
    field: str
    panel: str
    choice: Choice | None = None

    @property
    def hint(self) -> Any:
        return hints_of(self.owner)[self.field]

    @property
    def marks(self) -> tuple[Any, ...]:
        return getattr(self.hint, "__metadata__", ())


def leaves(settings: Any, path: tuple[str, ...] = (), panel: str = "", *, all: bool = False) -> Iterator[Setting]:
    """Yields each setting at every depth. `all`: also those of the classes that are not chosen.

    >>> from harness.settings.loss import Loss
    >>> [one.name for one in leaves(Loss())][:2]
    ['clip_low', 'clip_high']
    """
    kind = type(settings)
    for field in settings_in(settings):
        value, choice, place = getattr(settings, field.name), choice_of(field), (*path, field.name)
        if choice:
            chosen = choice.name_of(value)
            yield Setting(choice.flag, (*place, choice.flag), chosen, kind, field.name, field.name, choice)
            others = {name: its() for name, its in choice.classes.items() if all and name != chosen}
            for name, its in {chosen: value, **others}.items():
                if dataclasses.is_dataclass(its):
                    yield from leaves(its, (*place, name), field.name)
        elif isinstance(value, Section):
            whole = any(isinstance(getattr(value, inner.name), Section) for inner in settings_in(value))
            yield from leaves(value, place, "" if whole else field.name, all=all)
        else:
            yield Setting(getattr(kind, "prefix", "") + field.name, place, value, kind, field.name, panel)


def table_of(settings: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for one in leaves(settings):
        value = str(one.value) if isinstance(one.value, Path) else one.value
        if isinstance(value, Mapping):
            value = {str(key): inner for key, inner in value.items()}
        _put(table, one.path, value)
    return table


def flat(settings: Any) -> dict[str, Any]:
    return {one.name: one.value for one in leaves(settings)}


def marks(kind: type) -> dict[str, Changes]:
    """Returns what each setting changes, by the name of its flag; those of the choices that were not made, too.

    >>> from harness.settings.rollout import Rollout
    >>> marks(Rollout)["slots"]
    <Changes.MACHINE: 5>
    """
    by_name = {}
    for one in leaves(kind(), all=True):
        own = (mark for mark in one.marks if isinstance(mark, Changes))
        by_name[one.name] = next(own, getattr(one.owner, "changes", Changes.RESULT))
    return by_name


def changed(settings: T, /, **values: Any) -> T:
    """Returns settings like these with other values, by the names that their flags have, with underscores.

    >>> from harness.settings.grpo import GRPOConfig
    >>> changed(GRPOConfig(), wrapper="fixed", k0=30, eval_tasks=8).horizon
    FixedHorizon(k0=30)
    """
    for chooses in (True, False):  # a class that is chosen has settings of its own
        there, table = {one.name: one for one in leaves(settings)}, dict[str, Any]()
        for name, value in values.items():
            if name in there and bool(there[name].choice) == chooses:
                _put(table, there[name].path, value)
            elif name not in there and not chooses:
                raise TypeError(f"no setting {name!r}{near(name, there)}")
        settings = filled(settings, table)
    return settings


def python_names(settings: Any) -> dict[str, str]:
    """Returns what Python calls each flag, such as ``loss.kl_coef``; also those of other choices."""
    found = {one.name: ".".join((*one.path[:-1][:1], one.path[-1])) for one in leaves(settings, all=True)}
    return {"resume": "resume", **found}


def in_python(text: str, names: Mapping[str, str]) -> str:
    """Returns the text with the flags as a Python program calls them. Commands in it, and other flags, stay as they
    are.

    >>> in_python("--kl-coef; python -m harness.evaluate --horizon 9", {"kl_coef": "loss.kl_coef", "horizon": "k"})
    'loss.kl_coef; python -m harness.evaluate --horizon 9'
    """
    return re.sub(
        r"python -m [^;)]*|--([a-z][\w.-]*\w)",
        lambda match: names.get((match[1] or "").replace("-", "_"), match[0]),
        text,
    )


@contextlib.contextmanager
def advice_in_python(names: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except EHError as error:
        error.args = tuple(in_python(one, names) if isinstance(one, str) else one for one in error.args)
        raise


def _part(choice: Choice | None, now: Any, table: Mapping[str, Any], where: str) -> Any:
    return choice.filled(now, table, where) if choice else filled(now, table, where)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _put(table: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        table = table.setdefault(name, {})
    table[path[-1]] = value
