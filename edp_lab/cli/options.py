"""How options are declared and checked. Beside a type stand help and bounds: ``Annotated[int, "Seed.", SEED]``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from edp_lab.cli.output import echo
from edp_lab.errors import UsageError
from edp_lab.training.config import MOST, Bounds, flag_of, option_name

S = TypeVar("S")
Command = Callable[..., None]

UTTERANCES: Bounds = {"min": 1, "max": 10_000_000}  # a file of two gigabytes

BatchSize = Annotated[int, "Utterances per step, over all devices."]
Clip = Annotated[float, "Clip norm C."]
Corpus = Annotated[str, "A name from `edp-lab data list`, or a path."]
Delta = Annotated[float, "Delta of (epsilon, delta): a slack that should be well below 1/n."]
Epochs = Annotated[int, "Passes over the training set."]
Gpus = Annotated[int, "Devices N."]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
RunFolder = Annotated[Path, typer.Option("--run", help="Folder of a run: the --out of edp-lab train.")]
Size = Annotated[str, "paper, medium or small."]


# ---- Declaring -------------------------------------------------------------------------------------------------------


class _Command(TyperCommand):
    """Refuses before it begins what no option of any command can mean."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """In a list of commands its whole first sentence, on two lines if need be."""
        return super().get_short_help_str(1000)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            echo("interrupted", error=True)
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {option for parameter in self.params for option in parameter.opts}
        for before, arg in zip(["", *args], args, strict=False):
            option, equals, value = arg.partition("=")
            option, value = (option, value) if equals and arg.startswith("--") else (before, arg)
            if not value.strip() and (option in known or not option.startswith("-")):  # another program's may be empty
                what = option if option.startswith("-") else "an argument"
                raise UsageError(f"{what} is empty: give it a value, or drop it")
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(str(parameter.name))
            for item in value if isinstance(value, list | tuple) else [value]:
                _refuse_nonsense(parameter.opts[-1], item)
        return rest


def _refuse_nonsense(option: str, value: Any) -> None:
    """Numbers that are not finite, control characters, and ``-`` for a file."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{option} is {value}: give a finite number")
    text = str(value) if isinstance(value, Path) else "".join(value.split()) if isinstance(value, str) else ""
    if any(char < " " or char == "\x7f" for char in text):
        raise UsageError(f"{option} is {str(value)!r}: give it without control characters")
    if value == Path("-"):
        raise UsageError(f"{option} is '-', but neither reads nor writes a pipe: give a name, such as ./-")


class App(typer.Typer):
    """Typer, where a string is the help of its parameter, and a switch that is off has no ``--no-`` form."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:  # type: ignore[override]
        register = super().command(name, cls=_Command, **settings)

        def add(command: Command) -> Command:
            parameters = inspect.signature(command, eval_str=True).parameters.values()
            command.__signature__ = inspect.Signature([*map(_option, parameters)])  # type: ignore[attr-defined]
            return register(command)

        return add


def _option(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, *notes = get_args(parameter.annotation) or (parameter.annotation,)
    if not (notes and isinstance(notes[0], str)):
        return parameter
    switch = [flag_of(parameter.name)] if parameter.default is False else []
    bounds = notes[1] if notes[1:] else {}
    return parameter.replace(annotation=Annotated[kind, typer.Option(*switch, help=notes[0], **bounds)])


def options_of(settings: type) -> Callable[[Command], Command]:
    """Where a command ends in ``*, one: ..., **options``: an option for each field of the dataclass, then that one.

    Fields that the command declares itself are left out. `chosen` makes the dataclass of what was given.
    """
    types = get_type_hints(settings, include_extras=True)

    def expand(command: Command) -> Command:
        *parameters, _ = inspect.signature(command, eval_str=True).parameters.values()
        declared, keyword = {parameter.name for parameter in parameters}, inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(option_name(field.name), keyword, default=field.default, annotation=types[field.name])
            for field in fields(settings)
            if field.name not in declared
        ]
        first, last = (
            [parameter for parameter in parameters if (parameter.kind is keyword) == at_end] for at_end in (False, True)
        )
        command.__signature__ = inspect.Signature([*first, *more, *last])  # type: ignore[attr-defined]
        return command

    return expand


def given(ctx: typer.Context) -> set[str]:
    """The parameters that stand on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def chosen(ctx: typer.Context, settings: type[S], **more: Any) -> S:
    """The dataclass, its fields filled with the options that stand for them, and with what else is known."""
    names = {field.name: option_name(field.name) for field in fields(settings)}  # type: ignore[arg-type]
    return settings(**{field: ctx.params[name] for field, name in names.items() if name in ctx.params} | more)


# ---- Checking --------------------------------------------------------------------------------------------------------


def numbers(option: str, text: str, example: str, least: float = 1, most: float = MOST) -> tuple[int, ...]:
    """Whole numbers from `least` to `most`, written with commas between; UsageError for anything else."""
    try:
        values = tuple(int(number) for number in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(least <= number <= most for number in values):
        allowed = f"whole numbers from {least:,} to {most:,}"
        raise UsageError(f"{option} is {text!r}: give {allowed} with commas between, such as {example}")
    return values


def commas(*texts: str) -> list[str]:
    """The names in options that take several with commas between; UsageError where one is there twice."""
    names = [name.strip() for text in texts for name in text.split(",")]
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise UsageError(f"{twice[0]!r} is given twice: give each once")
    return names


def neighbours_named(text: str | None) -> Any:
    """The `Adjacency` of that name, ours or dp_accounting's, in any case; UsageError if there is none."""
    from edp_lab.privacy import Adjacency

    known = {name.lower(): member for name, member in Adjacency.__members__.items()}
    named = known | {member.value.lower(): member for member in Adjacency}
    if text is None:
        return None
    if str(text).lower() not in named:
        raise UsageError(f"unknown adjacency {text!r}: choose {', '.join(known)}")
    return named[str(text).lower()]
