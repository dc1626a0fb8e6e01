"""Code shared by all commands: declaring and checking options, printing results, and reporting progress.

An option's help and bounds follow its type: ``Annotated[int, "Seed.", SEED]``.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.table import Table
from typer.core import TyperCommand

from edp_lab.errors import UsageError, check_once
from edp_lab.files import writable
from edp_lab.training.config import MOST, Bounds, flag_of, option_name

S = TypeVar("S")
Command = Callable[..., None]

UTTERANCES: Bounds = {"min": 1, "max": 5_000_000}  # about one gigabyte, the largest file that edp_lab reads

BatchSize = Annotated[int, "Number of utterances per step, across all devices."]
Clip = Annotated[float, "Clip norm C."]
Corpus = Annotated[str, "Corpus: a name from `edp-lab data list`, or a path."]
Delta = Annotated[float, "Delta in (epsilon, delta), below 1/n; a smaller delta is stricter."]
Epochs = Annotated[int, "Number of passes over the training set."]
Gpus = Annotated[int, "Number N of devices."]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
RunFolder = Annotated[Path, typer.Option("--run", help="Run folder (--out of edp-lab train).")]
Size = Annotated[str, "Model size: paper, medium or small."]


# ---- Declaring -------------------------------------------------------------------------------------------------------


class _Command(TyperCommand):
    """Command that prints "interrupted" after Ctrl-C."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the full first sentence of the help, on two lines if necessary, for the list of commands."""
        return super().get_short_help_str(1000)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            echo("interrupted", error=True)
            raise


class App(typer.Typer):
    """Typer app that reads an option's help from its annotation; switches that are off have no ``--no-`` form."""

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
    """Decorator that replaces ``**options`` of a command with one option for each field of the dataclass.

    Fields that the command itself declares are skipped. `chosen` builds the dataclass from the options given.
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
    """Names of the parameters given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def chosen(ctx: typer.Context, settings: type[S], **more: Any) -> S:
    """Build the dataclass from the corresponding options and from `more`."""
    names = {field.name: option_name(field.name) for field in fields(settings)}  # type: ignore[arg-type]
    return settings(**{field: ctx.params[name] for field, name in names.items() if name in ctx.params} | more)


# ---- Checking --------------------------------------------------------------------------------------------------------


def numbers(option: str, text: str, example: str, least: float = 1, most: float = MOST) -> tuple[int, ...]:
    """Parse comma-separated integers from `least` to `most`; raise UsageError for anything else."""
    try:
        values = tuple(int(number) for number in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(least <= number <= most for number in values):
        allowed = f"whole numbers from {least:,} to {most:,}"
        raise UsageError(f"{option} is {text!r}: give {allowed}, separated by commas, such as {example}")
    return values


def commas(*texts: str) -> list[str]:
    """Split comma-separated option values into names; raise UsageError if a name is given twice."""
    names = [name.strip() for text in texts for name in text.split(",")]
    check_once(names)
    return names


def neighbours_named(text: str | None) -> Any:
    """Return the `Adjacency` with this name, ignoring case; raise UsageError if it is unknown."""
    from edp_lab.privacy import Adjacency

    if text is None:
        return None
    if text.upper() not in Adjacency.__members__:
        raise UsageError(f"unknown adjacency {text!r}: choose {', '.join(map(str.lower, Adjacency.__members__))}")
    return Adjacency[text.upper()]


# ---- Output ----------------------------------------------------------------------------------------------------------

WIDTH = 120  # maximum number of columns
# Characters that control a terminal or change the writing direction.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Escape control characters, which make text from a corpus, a record or a file unsafe for a terminal."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: object = "", error: bool = False) -> None:
    """Print text with control characters escaped, because it may come from a user."""
    with suppress(OSError) if error else nullcontext():  # the work continues even if progress cannot be printed
        print(shown(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


def print_json(value: Any) -> None:
    """Print JSON; escape non-ASCII characters only if the encoding of standard output is not Unicode."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    echo(json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False))


def number(value: float | None, digits: int = 6, absent: str = "none") -> str:
    return absent if value is None else f"{value:.{digits}g}"


Facts = list[tuple[str, str]]  # (name, value) pairs; an empty name continues the fact above


def up(bound: float | None, digits: int = 6) -> str:
    """Format an upper bound, rounded up."""
    from edp_lab.privacy.guarantee import upward

    return "none" if bound is None else upward(bound, digits)


def down(bound: float, digits: int = 3) -> str:
    """Format a lower bound, rounded down."""
    from edp_lab.privacy.guarantee import upward

    return upward(-bound, digits).lstrip("-")


class Report(NamedTuple):
    """Output of a command: a title, named facts, and notes below them."""

    title: str = ""
    facts: Sequence[tuple[str, str]] = ()  # see `Facts`
    notes: Sequence[str] = ()


def answer(as_json: bool, result: Any, report: Report) -> None:
    """Print a result as JSON, or as a report."""
    if as_json:
        print_json(result)
    else:
        Screen().report(report)


class Screen(Console):
    """Console that uses at most `width` columns and escapes control characters."""

    def __init__(self, width: int = WIDTH, markup: bool = False, stderr: bool = False) -> None:
        super().__init__(highlight=False, markup=markup, emoji=False, stderr=stderr)
        known = self.is_terminal or "COLUMNS" in os.environ
        self.width = min(self.width, width) if known else width

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(shown(item) if isinstance(item, str) else item for item in objects), **how)

    def table(self, lines: Sequence[Sequence[str]], **look: Any) -> None:
        """Print a table (see the function `table`)."""
        super().print(table(lines, **look))

    def report(self, report: Report) -> None:
        """Print the title, then the facts in two columns, then the notes."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(overflow="fold")
        for name, value in report.facts:
            grid.add_row(shown(name), shown(value))
        if report.title:
            self.print(report.title)
        if report.facts:
            super().print(grid)
        for note in report.notes:
            self.print(note)


def table(lines: Sequence[Sequence[str]], **look: Any) -> Table:
    """Build a table from a line of headings and lines of values, with all columns but the first right-aligned.

    `look`: options of `rich.table.Table`.
    """
    made = Table(**{"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, **look})
    heading, *rows = [[*map(shown, line)] for line in lines]
    for place, name in enumerate(heading):
        made.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def output_folder(out: Path) -> Path:
    """Return the folder as an absolute path, if `writable` finds that it can be written."""
    return writable(out.resolve(), "choose another --out")


# ---- Progress --------------------------------------------------------------------------------------------------------


@contextmanager
def bar(
    what: str,
    *columns: ProgressColumn,
    total: float | None = None,
    quiet: bool = False,
    **more: Any,
) -> Iterator[tuple[Callable[..., None], Callable[[str], None]]]:
    """Report progress on standard error: yield a function that updates a bar and a function that prints a line.

    Args:
        columns: columns of Rich's progress bar, which appears only on a terminal (default: Rich's columns).
        quiet: print nothing, because another process reports progress.
        more: fields of Rich's task, for the columns to show.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as moving:
        task = moving.add_task(what, total=total, **more)

        def update(completed: float | None = None, total: float | None = None, **change: Any) -> None:
            moving.update(task, completed=completed, total=total, **change)

        def say(line: str) -> None:
            if console.is_terminal and not quiet:
                console.print(shown(line))
            elif not quiet:
                echo(line, error=True)

        yield update, say


class Tell(Protocol):
    def __call__(self, line: str, kept: bool = False) -> None: ...


@contextmanager
def telling(first: str = "loading", lines: bool = True) -> Iterator[Tell]:
    """Report progress on standard error, on a terminal in a single line that is updated.

    `lines`: print each message on a line of its own; on a terminal, only those with `kept`, the others in one place.
    """
    with bar(first, SpinnerColumn(), TextColumn("{task.description}", markup=False)) as (update, say):

        def tell(line: str, kept: bool = False) -> None:
            update(description=shown(line))
            if lines and (kept or not sys.stderr.isatty()):
                say(line)

        yield tell
