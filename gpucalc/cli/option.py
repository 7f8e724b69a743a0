"""Options of commands: what one is, groups of them as dataclasses, and the decorator that gives them to the parser.

A command is a function whose parameters are groups of options (`job: JobOptions`) or single ones
(`top: int = option("--top N", "Rows to print.", default="10", read=positive_integer)`). The parser is given their
flat list; the function gets the values already read.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import typer

from gpucalc.cli.values import Reader
from gpucalc.core.errors import UsageError, choice


@dataclass(frozen=True)
class Option:
    """One option or argument.

    flags: such as ("-f", "--format"); none for an argument. `read` makes the value of the text; `choices` are all
    that it may be; these and the help may be functions, where knowing them takes an import. `complete` is what a
    shell offers where there are no choices: words, a function that gives them, or the name of a list of
    `completion.Names`; `files`, that it offers files. A cell is read later, as its column of the row schema, whose
    name is that of the field.
    """

    flags: tuple[str, ...]
    metavar: str
    help: str | Callable[[], str]
    default: str | None = None
    read: Reader | None = None
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    complete: str | Sequence[str] | Callable[[], Sequence[str]] = ()
    files: bool = False
    repeat: bool = False
    cell: bool = False
    required: bool = False

    @property
    def name(self) -> str:
        """What a complaint calls it: its long flag, or the argument's metavar."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.metavar)

    @property
    def words(self) -> tuple[str, ...]:
        """All that it may be, where that is a list of words; else none."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def value(self, text: Any) -> Any:
        """The value of what the parser found: of each text, where the option may be repeated."""
        if self.repeat:
            return tuple(self._one(part) for part in text or ())
        return text if text is None or isinstance(text, bool) else self._one(text)

    def _one(self, text: str) -> Any:
        if self.read is not None:
            return self.read(self.name, text)
        return choice(self.name, text, self.words) if self.choices else text

    def parameter(self, name: str) -> inspect.Parameter:
        """The parameter that the parser is to see."""
        default: Any = self.default
        help = self.help() if callable(self.help) else self.help
        kind: Any = Optional[list[str]] if self.repeat else Optional[str]
        if not self.flags:
            info: Any = typer.Argument(metavar=self.metavar, help=help)
        elif not self.metavar:
            kind, default = bool, False
            info = typer.Option(*self.flags, help=help)
        else:
            info = typer.Option(*self.flags, metavar=self.metavar, help=help)
        if self.required:
            kind, default = str, inspect.Parameter.empty
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )


def option(usage: str, help: str | Callable[[], str], **more: Any) -> Any:
    """An option as the default of a field or parameter; `usage` is its flags and metavar, "-f, --format FORMAT".

    One without a metavar is a switch. `more` are the fields of `Option`.
    """
    parts = usage.replace(",-", ", -").split()
    flags = [part.removesuffix(",") for part in parts if part.startswith("-")]
    metavar = " ".join(parts[len(flags) :])
    return _field(Option(tuple(flags), metavar, help, **more))


def argument(metavar: str, help: str, **more: Any) -> Any:
    """A positional argument as the default of a field or parameter."""
    return _field(Option((), metavar, help, **more))


def cell(usage: str, help: str, **more: Any) -> Any:
    """An option that states a column of the row schema: the one that the field is named after."""
    return option(usage, help, cell=True, **more)


def _field(one: Option) -> Any:
    return dataclasses.field(default=one.default, metadata={"option": one})


def options_of(group: Any) -> dict[str, Option]:
    """The options of a group, or of one of its instances, by the name of their field."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(group)}


def values_of(group: Any) -> dict[str, Any]:
    """The values of a group of options by the name of their field."""
    return {name: getattr(group, name) for name in options_of(group)}


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the parser wants it: one parameter for each option, and groups made of their values.

    Raises UsageError, when called, with all values that cannot be read. The options stand under `options`.
    """
    known: dict[str, Option] = {}
    groups: dict[str, Any] = {}
    others: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if isinstance(parameter.default, dataclasses.Field):
            added = {parameter.name: parameter.default.metadata["option"]}
        elif dataclasses.is_dataclass(kind := _class_of(function, parameter)):
            groups[parameter.name] = kind
            added = options_of(kind)
        else:
            others.append(parameter.replace(annotation=kind))
            continue
        assert not known.keys() & added.keys(), f"{function.__name__} has two options of one name"
        known |= added

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        values = read_all({name: (one, given.pop(name)) for name, one in known.items()})
        for name, group in groups.items():
            given[name] = group(**{field: values.pop(field) for field in options_of(group)})
        return function(**given, **values)

    seen = [*others, *(one.parameter(name) for name, one in known.items())]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in seen]
    )
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
    call.options = known  # type: ignore[attr-defined]
    return call


def _class_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The class that a parameter is annotated with; the annotation is text where annotations are postponed."""
    kind = parameter.annotation
    return eval(kind, function.__globals__) if isinstance(kind, str) else kind


def read_all(texts: Mapping[str, tuple[Option, Any]]) -> dict[str, Any]:
    """The values of several options; all that cannot be read are told at once."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, (one, text) in texts.items():
        try:
            values[name] = one.value(text)
        except UsageError as error:
            problems.extend(error.problems)
    if problems:
        raise UsageError(*problems)
    return values
