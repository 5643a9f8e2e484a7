"""The command line of every command: flags in panels, made from the fields of its settings, and errors in one line."""

import ast
import collections.abc
import dataclasses
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
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

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
from harness.settings.section import FIRST, Choice, Section, choice_of, filled, leaves, settings_in

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
_MARKS = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)


def parse(default: T, argv: Sequence[str] | None, *, prog: str, description: str = "", short: bool = False) -> T:
    """Reads the settings of a command from its command line.

    Each section has a panel of its own in ``--help``. Flags have the names of the fields, without that of the section.

    Args:
        default: The settings with their defaults, a dataclass. `tyro.MISSING` marks what the command line must give.
        argv: The command line; None for that of the process.
        prog: How the command is called; the help begins with it.
        description: What the command does. By default the first paragraph of the settings' docstring.
        short: Whether ``--help`` shows the flags that are `FIRST`, the command's own, and the first five of a
            controller; ``--help-all`` shows the others, too. By default ``--help`` shows all.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    words = ["--help" if word == "--help-all" else word for word in given]
    default = _chosen(default, words)
    _check_names(default, words)
    text = description or (type(default).__doc__ or "").split("\n\n")[0]
    short = short and words == given and bool({"-h", "--help"} & {*words})
    if short:
        text += " These are the flags that most runs need; --help-all shows all."
    # tyro wraps what is in panels. Elsewhere it joins lines, but for those with a space in front.
    text = textwrap.fill(" ".join(text.split()), shutil.get_terminal_size().columns, subsequent_indent=" ")
    kind: Any = Annotated[(type(default), *_MARKS)]
    read, more = tyro.cli(
        kind,
        default=default,
        args=words,
        prog=prog,
        description=text,
        registry=_registry(short=short),
        return_unknown_args=True,
    )
    if more:
        raise ConfigError(f"{' '.join(more)} belongs to no flag, and a flag takes one value; leave it out")
    return filled(default, read)


def parser_of(default: Any) -> Any:
    """Makes the argparse parser that `parse` uses, for the page of flags."""
    kind: Any = Annotated[(type(default), *_MARKS)]
    return tyro.extras.get_parser(kind, default=default, registry=_registry(short=False))


def given_flags(words: Sequence[str]) -> dict[str, str]:
    """Returns the flags of a command line, each with the name of its setting.

    >>> given_flags(["--no-packing", "--warm-start.episodes", "3"])
    {'--no-packing': 'packing', '--warm-start.episodes': 'warm_start.episodes'}
    """
    flags = [word.split("=")[0] for word in words if re.fullmatch(r"--[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL)]
    return {flag: re.sub("^--(no-)?", "", flag.replace("_", "-")).replace("-", "_") for flag in flags}


def flag_of(words: Sequence[str], name: str, default: str = "") -> str:
    """Returns the last value of one flag, before the flags are parsed."""
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
        end_with_error(console, str(error), code=1 if isinstance(error, UserCodeError) else 2)
    except KeyboardInterrupt as stop:
        console.print("; ".join(["stopped", *map(str, stop.args)]), highlight=False, soft_wrap=True, markup=False)
        sys.exit(130)


def end_with_error(console: Console, text: str, code: int = 2) -> NoReturn:
    """Prints the last line of a command that failed, and ends the process with this exit code."""
    console.print(f"[red]error:[/red] {escape(text)}", highlight=False, soft_wrap=True)
    sys.exit(code)


def _chosen(default: T, words: Sequence[str]) -> T:
    for field in settings_in(default):
        value, choice = getattr(default, field.name), choice_of(field)
        if choice and (name := flag_of(words, choice.flag)):
            value = choice.filled(value, {choice.flag: name}, "")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = _chosen(value, words)
        if value is not getattr(default, field.name):
            default = dataclasses.replace(default, **{field.name: value})  # type: ignore[type-var]
    return default


def _choices(settings: Any) -> Iterator[tuple[Choice, Any]]:
    for field in settings_in(settings):
        value, choice = getattr(settings, field.name), choice_of(field)
        if choice:
            yield choice, value
        elif dataclasses.is_dataclass(value):
            yield from _choices(value)


def _without_flag(settings: Any) -> Iterator[str]:
    hints, prefix = get_type_hints(type(settings), include_extras=True), getattr(settings, "prefix", "")
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _without_flag(value)
        elif tyro.conf.Fixed in getattr(hints[field.name], "__metadata__", ()):
            yield prefix + field.name


def _check_names(default: Any, words: Sequence[str]) -> None:
    hidden = {*_without_flag(default)}
    known = {name for name, _, _ in leaves(default)} - hidden | {"help"}
    for flag, name in given_flags(words).items():
        if name in known:
            continue
        if name in hidden:
            raise ConfigError(f"{name} has no flag; give it in a recipe or in a Python program")
        for choice, value in _choices(default):
            others = [n for n, kind in choice.classes.items() if name in getattr(kind, "__dataclass_fields__", ())]
            if others:
                raise ConfigError(
                    f"{flag} is for --{choice.flag} {' or '.join(others)}, got --{choice.flag} "
                    f"{choice.name_of(value)}; leave it out"
                )
        name = name.lower()
        meant = next((one for one in _MEANT.get(name, ()) if one in known), name)
        close = re.search(r"did you mean (.*)\?", near(meant, known))
        advice = f"did you mean --{close[1].replace('_', '-')}?" if close else "--help-all shows all flags"
        raise ConfigError(f"no flag {flag}; {advice}")


def _registry(*, short: bool) -> ConstructorRegistry:
    """How tyro makes flags from settings. `short`: the help shows the first ones."""
    registry = ConstructorRegistry()

    @registry.struct_rule
    def section(info: StructTypeInfo) -> StructConstructorSpec | None:
        value = info.default
        if isinstance(value, _Chosen):
            return StructConstructorSpec(value.table, tuple(value.fields(short)))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return StructConstructorSpec(dict, tuple(_fields(value, short)))  # a table: `filled` checks it
        return None

    @registry.primitive_rule
    def table(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if get_origin(info.type) is not collections.abc.Mapping:
            return None
        return _STAGES if get_args(info.type) == (int, int) else _JSON

    return registry


@dataclass(frozen=True)
class _Chosen:
    choice: Choice
    value: Any

    def fields(self, short: bool) -> list[StructFieldSpec]:
        """The flag that chooses, and those of the class that is chosen."""
        choice, name = self.choice, self.choice.name_of(self.value)
        flag = StructFieldSpec(choice.flag, _named(str, choice.flag), name, choice.text)
        return [flag, *(_fields(self.value, short, most=5) if dataclasses.is_dataclass(self.value) else ())]

    def table(self, **read: Any) -> dict[str, Any]:  # a docstring would be in the help
        name = read.pop(self.choice.flag)
        return {self.choice.flag: name, name: read} if read else {self.choice.flag: name}


def _fields(settings: Any, short: bool, most: int | None = None) -> list[StructFieldSpec]:
    """The flags and panels of a dataclass. In a short help, those of a section are marked, and of others there are at
    `most` so many.
    """
    hints, prefix = get_type_hints(type(settings), include_extras=True), getattr(settings, "prefix", "")
    specs, texts = [], _texts(type(settings))
    others = [] if isinstance(settings, Section) else [field.name for field in settings_in(settings)][:most]
    for field in settings_in(settings):
        value, choice = getattr(settings, field.name), choice_of(field)
        kind: Any
        text = texts.get(field.name, "")
        if choice:
            kind, value = _Chosen, _Chosen(choice, value)
        elif dataclasses.is_dataclass(value):
            whole = any(dataclasses.is_dataclass(getattr(value, inner.name)) for inner in settings_in(value))
            kind = Annotated[type(value), tyro.conf.arg(name="")] if whole else type(value)  # its sections are panels
        else:
            hint = hints[field.name]
            kind = _named(hint, prefix + field.name)
            if short and field.name not in others and FIRST not in getattr(hint, "__metadata__", ()):
                kind = Annotated[kind, tyro.conf.Suppress]
        specs.append(StructFieldSpec(field.name, kind, value, text))
    return specs


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


def _json(words: Sequence[str]) -> Any:
    try:
        read = json.loads(words[0])
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"it must be a JSON object, got {words[0]}")
    return read


def _stages(words: Sequence[str]) -> dict[int, int]:
    pairs = [(int(update), int(k)) for update, k in (pair.split(":") for pair in words[0].split(","))]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("it names an update twice")
    return dict(pairs)


_JSON = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="JSON",
    instance_from_str=_json,
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda value: [json.dumps(dict(value))],
)
_STAGES = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="UPDATE:K,...",
    instance_from_str=_stages,
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda value: [",".join(f"{update}:{k}" for update, k in value.items())],
)


def _named(hint: Any, name: str) -> Any:
    return Annotated[hint, tyro.conf.arg(name=name.replace("_", "-"))]
