"""What commands print: words, JSON, tables, and on standard error how far the work has come."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

from edp_lab.errors import UsageError

WIDTH = 120  # of what is printed to a file
PATIENCE = 2.0  # seconds before a bar for what is mostly done sooner


def open_streams() -> None:
    """Standard output and error take every character, one that they cannot encode as an escape.

    Raises:
        UsageError: standard output is closed.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a closed one: else the next file would get its number, and what C prints
    os.close(free)
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        raise UsageError("standard output is closed: send it to a file, or to /dev/null")


def print_json(value: Any, indent: int = 2, readable: bool = False, **how: Any) -> None:
    """`readable`: letters as they are, where standard output can encode them."""
    plain = not readable or not (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=indent, ensure_ascii=plain, **how))


def number(value: float | None, digits: int = 6, absent: str = "none") -> str:
    return absent if value is None else f"{value:.{digits}g}"


@cache
def _template(name: str) -> Any:
    """Of this folder: ``words.txt.j2`` or ``page.html.j2``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    from edp_lab.privacy.guarantee import upward

    def fill(text: str, indent: str = "") -> str:
        return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=3 * indent)

    look: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    beside = FileSystemLoader(Path(__file__).parent)
    here = Environment(loader=beside, undefined=StrictUndefined, autoescape=select_autoescape(["html.j2"]), **look)
    here.filters |= {"n": number, "up": lambda bound: "none" if bound is None else upward(bound, 6), "fill": fill}
    return here.get_template(name)


def words(macro: str, *values: Any) -> str:
    """A macro of ``words.txt.j2``, filled in."""
    return str(getattr(_template("words.txt.j2").module, macro)(*values)).removesuffix("\n")


class Section(NamedTuple):
    """Part of a page: a table, whose first line holds the headings, notes and figures; all of it text."""

    title: str = ""
    lines: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    figures: Sequence[Any] = ()  # see `edp_lab.course.kit.figure`


def html_page(title: str, sections: Sequence[Section], names: int = 1) -> str:
    """A page that needs no network; the first so many columns of its tables hold names."""
    from edp_lab.course.kit.figure import figure_html

    numbers = count(1)
    drawn = [[figure_html(one, next(numbers)) for one in section.figures] for section in sections]
    parts = [section._replace(figures=own) for section, own in zip(sections, drawn, strict=True)]
    return str(_template("page.html.j2").render(title=title, sections=parts, names=names))


def screen(width: int = WIDTH, markup: bool = False) -> Console:
    """Standard output, at most so wide, and just so wide where it is no terminal."""
    console = Console(highlight=False, markup=markup, emoji=False)
    console.width = min(console.width, width) if console.is_terminal else width
    return console


def table(lines: Sequence[Sequence[str]], groups: int = 0, wrap: bool = False, **look: Any) -> Table:
    """The first line holds the headings. The first column stands to the left, the others to the right.

    Args:
        groups: rows with the same first cell have a line around them, and their first cells so often only once.
        wrap: whether all columns but the first may go on in a next line.
        look: of the table, for rich.
    """
    made = Table(**{"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, **look})
    heading, *rows = lines
    for place, name in enumerate(heading):
        made.add_column(name, justify="right" if place else "left", no_wrap=not (wrap and place))
    before = None
    for row in rows:
        again = groups and row[0] == before
        if groups and before is not None and not again:
            made.add_section()
        made.add_row(*([""] * groups if again else row[:groups]), *row[groups:])
        before = row[0]
    return made


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A column for each name that any row has, in the order of their appearance."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return lines.getvalue()


# ---- How far the work has come ---------------------------------------------------------------------------------------


class Tell(Protocol):
    def __call__(self, line: str, kept: bool | None = None) -> None: ...


@contextmanager
def doing(first: str) -> Iterator[Callable[[str], None]]:
    """Says on standard error, on a terminal, what is being done; names stay names, in which rich reads no markup."""
    with Console(stderr=True).status(Text(first)) as status:
        yield lambda line: status.update(Text(line))


@contextmanager
def telling(first: str = "loading") -> Iterator[Tell]:
    """Says on standard error what is being done: on a terminal in one changing line, else a line each.

    A line that is told to be kept stays on a terminal too; one that is told not to be is not written elsewhere.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda line, kept=None: None if kept is False else print(line, file=sys.stderr, flush=True)
        return
    with console.status(Text(first)) as status:

        def tell(line: str, kept: bool | None = None) -> None:
            status.update(Text(line))
            if kept:
                console.print(line)

        yield tell


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
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as shown:
        task = shown.add_task(what, total=total, visible=not patience, **more)

        def update(completed: float | None = None, total: float | None = None, **change: Any) -> None:
            patient = (shown.tasks[0].elapsed or 0) < patience
            shown.update(task, completed=completed, total=total, visible=not patient, **change)

        def say(line: str) -> None:
            if console.is_terminal and not quiet:
                console.print(line)
            elif not quiet:
                print(line, file=sys.stderr, flush=True)

        yield update, say
