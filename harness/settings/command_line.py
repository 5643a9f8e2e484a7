"""The command line of every command: flags in panels, and errors in one line."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_type_hints

import tyro
from rich.console import Console
from rich.markup import escape

from eh_gym.errors import EHError

__all__ = ["end_with_error", "errors_in_one_line", "given_flags", "parse", "parser_of"]

T = TypeVar("T")


def parse(
    default: T, argv: Sequence[str] | None, *, prog: str, description: str = "", first: Collection[str] = ()
) -> T:
    """Reads the settings of a command from its command line.

    ``--help`` shows each group of flags in a panel of its own. The groups of a dataclass are its base classes; a dataclass
    without bases has one panel. A field that holds another dataclass adds the groups of that one; if that one has no bases, the
    names of its flags begin with the field's name, such as ``--warm-start.episodes``.

    Args:
        default: The settings with their defaults. `tyro.MISSING` marks what the command line must give.
        argv: The command line; None for that of the process.
        prog: How the command is called; the help begins with it.
        description: What the command does. By default the first paragraph of the settings' docstring.
        first: The settings that ``--help`` shows, such as ``"updates"`` and ``"warm_start.episodes"``; ``--help-all`` shows the
            others, too. By default ``--help`` shows all.

    Raises:
        ConfigError: The settings refuse a value.
        SystemExit: tyro refuses a flag or the type of its value, and has printed why.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    words = ["--help" if word == "--help-all" else word for word in given]
    groups = _groups(default)
    if not groups:
        return tyro.cli(type(default), args=words, default=default, prog=prog)
    shown, text = groups, description or _description(type(default))
    if first and words == given and {"-h", "--help"} & {*words}:
        shown, text = (
            _shortened(groups, first),
            f"{text} These are the flags that most runs need; --help-all shows all.",
        )
    found: Any = tyro.cli(_flags(shown), args=words, prog=prog, description=text)
    values: dict[str, Any] = {}
    for name, group in groups.items():
        read = getattr(found, name)
        values |= {name: read} if group.prefixed else {f.name: getattr(read, f.name) for f in dataclasses.fields(read)}
    return _filled(default, values)


def parser_of(default: Any) -> Any:
    """Makes the argparse parser that `parse` uses, for the page of flags."""
    groups = _groups(default)
    return tyro.extras.get_parser(_flags(groups)) if groups else tyro.extras.get_parser(type(default), default=default)


def given_flags(words: Sequence[str]) -> dict[str, str]:
    """Returns the flags of a command line, each with the name of its setting.

    >>> given_flags(["--no-keep-attention", "--warm-start.episodes", "3"])
    {'--no-keep-attention': 'keep_attention', '--warm-start.episodes': 'warm_start'}
    """
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    return {flag: flag.removeprefix("--").removeprefix("no-").split(".")[0].replace("-", "_") for flag in flags}


@contextmanager
def errors_in_one_line(console: Console) -> Iterator[None]:
    """Ends the process with one line if the block raises an error that is meant for the user, or is interrupted.

    The exit code is 2, and 130 after an interrupt. A command that can go on says how: it raises ``KeyboardInterrupt(HOW)``.
    """
    try:
        yield
    except EHError as error:
        end_with_error(console, str(error))
    except KeyboardInterrupt as stop:
        console.print("; ".join(["stopped", *map(str, stop.args)]), highlight=False, soft_wrap=True, markup=False)
        sys.exit(130)


def end_with_error(console: Console, text: str) -> NoReturn:
    """Prints the last line of a command that failed, and ends the process with exit code 2."""
    console.print(f"[red]error:[/red] {escape(text)}", highlight=False, soft_wrap=True)
    sys.exit(2)


@dataclass(frozen=True)
class _Group:
    """One panel of flags: its values so far, and whether its flags have the panel's name in front."""

    values: Any
    prefixed: bool


def _groups(default: Any) -> dict[str, _Group]:
    """The panels of a dataclass by name, in the order in which the help shows them; empty if it has no groups."""
    bases = _bases(type(default))
    found = {_panel_name(base): _Group(_part(default, base), prefixed=False) for base in bases}
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        if not dataclasses.is_dataclass(value):
            assert not bases or any(field.name in base.__dataclass_fields__ for base in bases), (
                f"{field.name}: no group"
            )
        elif _bases(type(value)):
            found |= _groups(value)
        else:
            found[field.name] = _Group(value, prefixed=True)
    return found


def _shortened(groups: Mapping[str, _Group], first: Collection[str]) -> dict[str, _Group]:
    """The panels with the settings in `first` alone, for the help. No command line can be read with them."""
    found, suppress = {}, cast(Any, tyro.conf.Suppress)
    for name, group in groups.items():
        prefix, kind = f"{name}." if group.prefixed else "", type(group.values)
        hints = get_type_hints(kind, include_extras=True)
        hidden = [field.name for field in dataclasses.fields(kind) if prefix + field.name not in first]
        if len(hidden) == len(hints):
            continue
        suppressed: list[Any] = [
            (each, suppress[hints[each]], dataclasses.field(default=getattr(group.values, each))) for each in hidden
        ]
        shorter = dataclasses.make_dataclass(
            kind.__name__, suppressed, bases=(kind,), frozen=True, namespace={"__doc__": kind.__doc__}
        )
        values = {field.name: getattr(group.values, field.name) for field in dataclasses.fields(kind)}
        found[name] = _Group(shorter(**values), group.prefixed)
    return found


def _bases(settings: type) -> list[Any]:
    return [base for base in reversed(settings.__mro__[1:]) if "__dataclass_fields__" in vars(base)]


def _part(default: Any, base: Any) -> Any:
    return base(**{field.name: getattr(default, field.name) for field in dataclasses.fields(base)})


def _panel_name(group: type) -> str:
    """``SamplingFlags`` -> "sampling"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", group.__name__.removesuffix("Flags")).lower()


def _flags(groups: Mapping[str, _Group]) -> type:
    """A dataclass with a field for each panel, as tyro wants it."""
    fields: list[Any] = []
    for name, group in groups.items():
        kind = type(group.values)
        annotation = kind if group.prefixed else Annotated[kind, tyro.conf.OmitArgPrefixes]
        fields.append((name, annotation, dataclasses.field(default=group.values)))
    return dataclasses.make_dataclass("Flags", fields, frozen=True)


def _description(settings: type) -> str:
    """The first paragraph of the docstring."""
    return (settings.__doc__ or "").split("\n\n")[0]


def _filled(default: T, values: Mapping[str, Any]) -> T:
    """Settings like `default`, with the values in their places."""
    filled = {
        field.name: values[field.name] if field.name in values else _filled(getattr(default, field.name), values)
        for field in dataclasses.fields(default)  # type: ignore[arg-type]
    }
    return type(default)(**filled)
