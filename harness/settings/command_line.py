"""The command line of every command: flags in panels, made from the fields of its settings, and errors in one line."""

import ast
import collections.abc
import functools
import inspect
import itertools
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro
from rich.console import Console
from rich.markup import escape
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from eh_gym.errors import ConfigError, EHError, UserCodeError
from eh_gym.ranges import near
from envs.make import json_object
from harness.settings.section import FIRST, NO_FLAG, Section, Setting, changed, leaves, settings_in

T = TypeVar("T")

_OTHERS_S = 20.0  # until the first rank, too, has loaded its packages
# What users of other programs write, and the settings that they mean: the first that the command has.
_MEANT = {
    **dict.fromkeys(("k", "k0", "horizon", "max_turns", "max_steps"), ("k0", "horizon", "k_min", "stages")),
    **dict.fromkeys(("epochs", "iterations"), ("updates",)),
    "steps": ("updates", "horizon"),
    **dict.fromkeys(("num_generations", "group_size"), ("group_size", "rollouts")),
    "batch_size": ("tasks_per_update", "slots"),
    "beta": ("kl_coef",),
    "lr": ("learning_rate",),
    "output_dir": ("out",),
}


def parse(default: T, argv: Sequence[str] | None, *, prog: str, short: bool = False) -> T:
    """Reads the settings of a command from its command line. Its help says the first paragraph of their docstring.

    Each section has a panel of its own in ``--help``. Flags have the names of the fields, without that of the section.

    Args:
        default: The settings with their defaults, a dataclass. `tyro.MISSING` marks what the command line must give.
        argv: The command line; None for that of the process.
        prog: How the command is called; the help begins with it.
        short: Whether ``--help`` shows the flags that are `FIRST`, the command's own, and the first five of a
            controller; ``--help-all`` shows the others, too. By default ``--help`` shows all.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    words = ["--help" if word == "--help-all" else word for word in given]
    chosen = {one.name: flag_of(words, one.name) for one in leaves(default) if one.choice}
    default = changed(default, **{name: value for name, value in chosen.items() if value})
    _check_names(default, words)
    text = (type(default).__doc__ or "").split("\n\n")[0]
    short = short and words == given and bool({"-h", "--help"} & {*words})
    if short:
        text += " These are the flags that most runs need; --help-all shows all."
    # tyro wraps what is in panels. Elsewhere it joins lines, but for those with a space in front.
    text = textwrap.fill(" ".join(text.split()), shutil.get_terminal_size().columns, subsequent_indent=" ")
    read, more = tyro.cli(
        **_flags(default, short=short), args=words, prog=prog, description=text, return_unknown_args=True
    )
    if more:
        raise ConfigError(f"{' '.join(more)} belongs to no flag, and a flag takes one value; leave it out")
    values: dict[str, Any] = {}
    for name, value in read.items():
        values |= value if isinstance(value, _Read) else {name: value}
    return changed(default, **values)


def parser_of(default: Any) -> Any:
    return tyro.extras.get_parser(**_flags(default, short=False))


def given_flags(words: Sequence[str]) -> dict[str, str]:
    """Returns the flags of a command line, each with the name of its setting.

    >>> given_flags(["--no-packing", "--warm-start.episodes", "3"])
    {'--no-packing': 'packing', '--warm-start.episodes': 'warm_start.episodes'}
    """
    flags = [word.split("=")[0] for word in words if re.fullmatch(r"--[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL)]
    return {flag: re.sub("^--(no-)?", "", flag.replace("_", "-")).replace("-", "_") for flag in flags}


def flag_of(words: Sequence[str], name: str, default: str = "") -> str:
    for i, word in reversed(list(enumerate(words))):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == f"--{name.replace('_', '-')}":
            if equals:
                return value
            if i + 1 < len(words):
                return words[i + 1]
    return default


@contextmanager
def errors_in_one_line(console: Console) -> Iterator[None]:
    """Ends the process with one line if the block raises an error that is meant for the user, or is interrupted.

    The exit code is 2, 1 if code of the user's failed, and 130 after an interrupt. A command that can go on says how:
    it raises ``KeyboardInterrupt(HOW)``.

    Under torchrun, a machine's first rank tells an error that all have, and torchrun ends the others.
    """
    try:
        yield
    except EHError as error:
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ["LOCAL_RANK"] != "0":
            time.sleep(_OTHERS_S)  # a rank that is still alive then has an error of its own
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1 if isinstance(error, UserCodeError) else 2)
    except KeyboardInterrupt as stop:
        console.print("; ".join(["stopped", *map(str, stop.args)]), highlight=False, soft_wrap=True, markup=False)
        sys.exit(130)


def _check_names(default: Any, words: Sequence[str]) -> None:
    settings = [*leaves(default)]
    known = {one.name for one in settings if NO_FLAG not in one.marks} | {"help"}
    for flag, name in given_flags(words).items():
        if name in known:
            continue
        if any(one.name == name for one in settings):
            raise ConfigError(f"{name} has no flag; give it in a recipe or in a Python program")
        for one in settings:
            classes = one.choice.classes if one.choice else {}
            if others := [n for n, kind in classes.items() if name in getattr(kind, "__dataclass_fields__", ())]:
                raise ConfigError(
                    f"{flag} is for --{one.name} {' or '.join(others)}, got --{one.name} {one.value}; leave it out"
                )
        name = name.lower()
        meant = next((one for one in _MEANT.get(name, ()) if one in known), name)
        close = re.search(r"did you mean (.*)\?", near(meant, known))
        advice = f"did you mean --{close[1].replace('_', '-')}?" if close else "--help-all shows all flags"
        raise ConfigError(f"no flag {flag}; {advice}")


class _Read(dict[str, Any]):
    """The values of the flags of a panel, by name."""


@dataclass(frozen=True)
class _Panel:
    flags: Sequence[StructFieldSpec]


def _flags(default: Any, *, short: bool) -> dict[str, Any]:
    """What tyro makes the command line from. `short`: the help shows the first flags."""
    panels: dict[str, list[StructFieldSpec]] = {"": []}
    # The command's own flags come first.
    for one in sorted(leaves(default), key=lambda one: one.owner is not type(default) or bool(one.choice)):
        if NO_FLAG in one.marks:
            continue
        kind: Any = str if one.choice else one.hint
        kind = Annotated[kind, tyro.conf.arg(name=one.name.replace("_", "-"))]
        if short and not _is_first(one, type(default)):
            kind = Annotated[kind, tyro.conf.Suppress]
        text = one.choice.text if one.choice else _texts(one.owner).get(one.field, "")
        panels.setdefault(one.panel, []).append(StructFieldSpec(one.name, kind, one.value, text))
    own = panels.pop("")
    whole = _Panel([*own, *(StructFieldSpec(name, _Panel, _Panel(flags), "") for name, flags in panels.items())])
    registry = ConstructorRegistry()

    @registry.struct_rule
    def panel(info: StructTypeInfo) -> StructConstructorSpec | None:
        return StructConstructorSpec(_Read, tuple(info.default.flags)) if info.type is _Panel else None

    @registry.primitive_rule
    def mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if get_origin(info.type) is not collections.abc.Mapping:
            return None
        stages = get_args(info.type) == (int, int)
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="UPDATE:K,..." if stages else "JSON",
            instance_from_str=_stages if stages else _json,
            is_instance=lambda value: isinstance(value, Mapping),
            str_from_instance=lambda value: [
                ",".join(f"{update}:{k}" for update, k in value.items()) if stages else json.dumps(dict(value))
            ],
        )

    config = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
    return {"f": _Panel, "default": whole, "registry": registry, "config": config}


def _is_first(one: Setting, command: type) -> bool:
    if issubclass(one.owner, Section) or one.owner is command:
        return one.choice is not None or one.owner is command or FIRST in one.marks
    return one.field in [field.name for field in settings_in(one.owner)][:5]  # of a controller


@functools.cache
def _texts(kind: Any) -> Mapping[str, str]:
    texts = {}
    for base in reversed(kind.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError):  # there is no source
            continue
        for field, docstring in itertools.pairwise(body):
            match field, docstring:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def _json(words: Sequence[str]) -> dict[str, Any]:
    return json_object(words[0], "the value")


def _stages(words: Sequence[str]) -> dict[int, int]:
    pairs = [(int(update), int(k)) for update, k in (pair.split(":") for pair in words[0].split(","))]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("it names an update twice")
    return dict(pairs)
