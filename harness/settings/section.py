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
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from tyro.conf import Fixed, Suppress

from eh_gym.errors import ConfigError, EHError
from eh_gym.ranges import check_fields, check_names, near

T = TypeVar("T")
S = TypeVar("S", bound="Section")

NoFlag = Annotated[T, Fixed, Suppress]
"""The type of a setting that only recipes and Python programs give."""

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

    def __new__(cls: type[S], *_: Any, **given: Any) -> S:
        """Refuses names that are no settings."""
        check_names(cls, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            if choice := choice_of(field):
                value = choice.filled(_default(field), value, f"{field.name}.") if isinstance(value, Mapping) else value
                choice.check(value)
            elif isinstance(value, Mapping) and isinstance(hint, type) and issubclass(hint, Section):
                value = filled(_default(field), value, f"{field.name}.")
            elif isinstance(value, str) and hint == Path | None:
                value = Path(value) if value else None
            object.__setattr__(self, field.name, value)
        check_fields(self, self.prefix, lambda name: f"--{self.prefix}{name}".replace("_", "-"))


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
        named: Makes a value with its defaults from a name, or raises a ConfigError.
        name_of: Returns the name for a value.
        check: Raises ConfigError for what can't be a value.
    """

    flag: str
    text: str
    classes: Mapping[str, type]
    named: Callable[[str], Any]
    name_of: Callable[[Any], str]
    check: Callable[[Any], None]

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

    def table(self, value: Any) -> dict[str, Any]:
        name, inner = self.name_of(value), table_of(value) if dataclasses.is_dataclass(value) else {}
        return {self.flag: name, **({name: inner} if inner else {})}


def settings_in(settings: Any) -> list[dataclasses.Field[Any]]:
    """Returns the fields that are settings. A controller may have others, with ``init=False``, for what it counts."""
    return [field for field in dataclasses.fields(settings) if field.init]


def choice_of(field: dataclasses.Field[Any]) -> Choice | None:
    """Returns how the class of a field's value is chosen; None for a field of one type."""
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
            inner = f"{where}{name}."
            value = choice.filled(now, value, inner) if choice else filled(now, value, inner)
        values[name] = value
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def table_of(settings: Any) -> dict[str, Any]:
    """Returns the settings as a table for JSON and TOML, from which `filled` makes them again."""
    table: dict[str, Any] = {}
    for field in settings_in(settings):
        value, choice = getattr(settings, field.name), choice_of(field)
        if choice:
            value = choice.table(value)
        elif isinstance(value, Section):
            value = table_of(value)
        elif isinstance(value, Mapping):
            value = {str(key): inner for key, inner in value.items()}
        table[field.name] = str(value) if isinstance(value, Path) else value
    return table


def leaves(settings: Any) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yields each setting at every depth: its name among those of all sections, the names that lead to it, and its
    value.

    >>> from harness.settings.loss import Loss
    >>> next(leaves(Loss()))
    ('clip_low', ('clip_low',), 0.2)
    """
    prefix, path = getattr(settings, "prefix", ""), tuple[str, ...]()
    for field in settings_in(settings):
        value, choice = getattr(settings, field.name), choice_of(field)
        if choice:
            name = choice.name_of(value)
            yield choice.flag, (field.name, choice.flag), name
            inner, path = value if dataclasses.is_dataclass(value) else None, (field.name, name)
        else:
            inner, path = value if isinstance(value, Section) else None, (field.name,)
        if inner is not None:
            yield from ((name, (*path, *rest), leaf) for name, rest, leaf in leaves(inner))
        elif not choice:
            yield f"{prefix}{field.name}", path, value


def flat(settings: Any) -> dict[str, Any]:
    """Returns all settings by the names that their flags have, with underscores."""
    return {name: value for name, _, value in leaves(settings)}


def marks(kind: type) -> dict[str, Changes]:
    """Returns what each setting changes, by the name of its flag; those of the choices that were not made, too.

    >>> from harness.settings.rollout import Rollout
    >>> marks(Rollout)["slots"]
    <Changes.MACHINE: 5>
    """
    hints, by_name = get_type_hints(kind, include_extras=True), dict[str, Changes]()
    prefix, default = getattr(kind, "prefix", ""), getattr(kind, "changes", Changes.RESULT)
    for field in settings_in(kind):
        choice, hint = choice_of(field), hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section) and not choice:
            by_name |= marks(hint)
            continue
        for chosen in filter(dataclasses.is_dataclass, choice.classes.values() if choice else ()):
            by_name |= marks(chosen)
        marked = (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Changes))
        by_name[choice.flag if choice else prefix + field.name] = next(marked, default)
    return by_name


def changed(settings: T, /, **values: Any) -> T:
    """Returns settings like these with other values, by the names that their flags have, with underscores.

    >>> from harness.settings.grpo import GRPOConfig
    >>> changed(GRPOConfig(), wrapper="fixed", k0=30, eval_tasks=8).horizon
    FixedHorizon(k0=30)
    """
    for field in settings_in(settings):
        if (choice := choice_of(field)) and choice.flag in values:
            chosen = choice.filled(getattr(settings, field.name), {choice.flag: values[choice.flag]}, "")
            settings = dataclasses.replace(settings, **{field.name: chosen})  # type: ignore[type-var]
    paths = {name: path for name, path, _ in leaves(settings)}
    table: dict[str, Any] = {}
    for name, value in values.items():
        if name not in paths:
            raise TypeError(f"no setting {name!r}{near(name, paths)}")
        *outer, last = paths[name]
        inner = table
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return filled(settings, table)


def python_names(settings: Any) -> dict[str, str]:
    """Returns what Python calls each flag, such as ``loss.kl_coef``; also those of other choices."""
    names = {"resume": "resume"}
    for part in settings_in(settings):
        if choice := choice_of(part):
            for kind in filter(dataclasses.is_dataclass, choice.classes.values()):
                names |= {one.name: f"{part.name}.{one.name}" for one in settings_in(kind)}
    return names | {name: ".".join((*path[:-1][:1], path[-1])) for name, path, _ in leaves(settings)}


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
    """Puts the errors of a block into the words of a Python program."""
    try:
        yield
    except EHError as error:
        error.args = tuple(in_python(one, names) if isinstance(one, str) else one for one in error.args)
        raise


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
