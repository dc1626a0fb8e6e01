"""What commands print and write: words, JSON, tables, and on standard error how far the work has come."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.table import Table

from edp_lab.files import writable

WIDTH = 120  # columns, at most
# Characters that command a terminal, and those that turn the direction of writing.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
PATIENCE = 2.0  # seconds before a bar for what is mostly done sooner


def shown(text: str) -> str:
    """A text from a corpus, a record or a file as a terminal may have it: what would command it is an escape."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: object = "", error: bool = False) -> None:
    """What every command prints with, be it people's text or its own."""
    with suppress(OSError) if error else nullcontext():  # no work ends because nobody can read how far it has come
        print(shown(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


def print_json(value: Any) -> None:
    """Letters stay as they are if standard output can encode them."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    echo(json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False))


def number(value: float | None, digits: int = 6, absent: str = "none") -> str:
    return absent if value is None else f"{value:.{digits}g}"


Facts = list[tuple[str, str]]  # names and values; a line without a name goes on with what is above it


def up(bound: float | None, digits: int = 6) -> str:
    """An upper bound, rounded up."""
    from edp_lab.privacy.guarantee import upward

    return "none" if bound is None else upward(bound, digits)


def down(bound: float, digits: int = 3) -> str:
    """A lower bound, rounded down."""
    from edp_lab.privacy.guarantee import upward

    return upward(-bound, digits).lstrip("-")


class Report(NamedTuple):
    """What a command prints: a line, values beside their names, and paragraphs below."""

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
    """A terminal or a file, at most `width` columns of it; what would command a terminal is escaped."""

    def __init__(self, width: int = WIDTH, markup: bool = False, stderr: bool = False) -> None:
        super().__init__(highlight=False, markup=markup, emoji=False, stderr=stderr)
        known = self.is_terminal or "COLUMNS" in os.environ
        self.width = min(self.width, width) if known else width

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(shown(item) if isinstance(item, str) else item for item in objects), **how)

    def table(self, lines: Sequence[Sequence[str]], groups: int = 0, **look: Any) -> None:
        """See `table`."""
        super().print(table(lines, groups, **look))

    def report(self, report: Report) -> None:
        """The title, then names and values in two columns, then the notes."""
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


def table(lines: Sequence[Sequence[str]], groups: int = 0, **look: Any) -> Table:
    """The first line holds the headings. The first column stands to the left, the others to the right.

    Args:
        groups: rows with the same first cell have a line around them, and their first cells so often only once.
        look: of the table, for rich.
    """
    made = Table(**{"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, **look})
    heading, *rows = [[*map(shown, line)] for line in lines]
    for place, name in enumerate(heading):
        made.add_column(name, justify="right" if place else "left", overflow="fold")
    before = None
    for row in rows:
        again = groups and row[0] == before
        if groups and before is not None and not again:
            made.add_section()
        made.add_row(*([""] * groups if again else row[:groups]), *row[groups:])
        before = row[0]
    return made


def output_folder(out: Path) -> Path:
    """The folder as an absolute path; see `writable`."""
    return writable(out.resolve(), "choose another --out")


# ---- How far the work has come ---------------------------------------------------------------------------------------


@contextmanager
def bar(
    what: str,
    *columns: ProgressColumn,
    total: float | None = None,
    quiet: bool = False,
    patience: float = 0.0,
    **more: Any,
) -> Iterator[tuple[Callable[..., None], Callable[[str], None]]]:
    """On standard error: a bar on a terminal, moved by the first function; and lines everywhere, by the second.

    Args:
        columns: of the bar, for rich; none: its own.
        quiet: nothing at all, because another process speaks.
        patience: seconds before the bar appears.
        more: values of the task that columns show.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as moving:
        task = moving.add_task(what, total=total, visible=not patience, **more)

        def update(completed: float | None = None, total: float | None = None, **change: Any) -> None:
            patient = (moving.tasks[0].elapsed or 0) < patience
            moving.update(task, completed=completed, total=total, visible=not patient, **change)

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
    """On standard error, what is being done: on a terminal in one changing line, else, if wanted, a line each.

    A line that is told to be kept stays on a terminal too. Names stay names, in which rich reads no markup.
    """
    with bar(first, SpinnerColumn(), TextColumn("{task.description}", markup=False)) as (update, say):

        def tell(line: str, kept: bool = False) -> None:
            update(description=shown(line))
            if lines and (kept or not sys.stderr.isatty()):
                say(line)

        yield tell
