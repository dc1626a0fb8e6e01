"""What commands print and write: words, JSON, tables, and on standard error how far the work has come."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

from edp_lab.errors import UsageError, writing
from edp_lab.files import regular, writable, write_whole

WIDTH = 120  # of what is printed to a file
# Characters that command a terminal, and those that turn the direction of writing.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet takes for the beginning of one
PATIENCE = 2.0  # seconds before a bar for what is mostly done sooner


class _Out(io.TextIOWrapper):
    """Standard output: its faults name it."""

    guard: Any = staticmethod(partial(writing, "standard output", "send it elsewhere"))

    def write(self, text: str) -> int:
        with self.guard():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self.guard():
            super().flush()


class _Aside(_Out):
    """Standard error: no work ends because nobody can read how far it has come."""

    guard = staticmethod(partial(suppress, OSError))


def open_streams() -> None:
    """Standard output and error take every character, one that they cannot encode as an escape.

    UsageError where standard output is closed, or the working folder is gone.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a closed one: else the next file would get its number, and what C prints
    os.close(free)
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115 - as long as the process
    if (own := sys.__stderr__) and sys.stderr is own:  # else somebody listens
        sys.stderr = _Aside(own.buffer, encoding=own.encoding, line_buffering=True)
    if (own := sys.__stdout__) and sys.stdout is own:
        own.flush()
        sys.stdout = _Out(own.buffer, own.encoding, line_buffering=own.line_buffering, write_through=own.write_through)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        raise UsageError("standard output is closed: send it to a file, or to /dev/null")
    if len(os.environ.get("COLUMNS", "")) > 4:  # no terminal is so wide, and rich would fill its lines with blanks
        del os.environ["COLUMNS"]
    try:
        os.getcwd()
    except OSError:  # libraries of numbers would die of it
        raise UsageError("the folder that you are in has been removed: change to one that exists") from None


def shown(text: str) -> str:
    """A text from a corpus, a record or a file as a terminal may have it: what would command it is an escape."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", error: bool = False) -> None:
    """What every command prints with, be it people's text or its own."""
    print(shown(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


def columns(most: int) -> int:
    """Of the terminal or $COLUMNS, at most so many; just so many where there is neither."""
    return max(20, min(most, shutil.get_terminal_size((most, 0)).columns))


def fitted(text: str) -> str:
    """Lines that go on below, further in, where the terminal is too narrow for them."""
    width, lines = columns(1000), []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line, width, subsequent_indent=f"{indent}  ", break_on_hyphens=False, drop_whitespace=len(line) > width
        ) or [""]
    return "\n".join(lines)


def print_json(value: Any, indent: int = 2, readable: bool = False) -> None:
    """`readable`: letters as they are, where standard output can encode them."""
    plain = not readable or not (sys.stdout.encoding or "").lower().startswith("utf")
    echo(json.dumps(value, indent=indent, ensure_ascii=plain, allow_nan=False))


def filled(text: str, most: int) -> str:
    """After an empty line, lines of at most so many columns."""
    return "\n" + textwrap.fill(text, columns(most))


def number(value: float | None, digits: int = 6, absent: str = "none") -> str:
    return absent if value is None else f"{value:.{digits}g}"


@cache
def _template(name: str) -> Any:
    """Of this folder: ``words.txt.j2`` or ``page.html.j2``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    from edp_lab.privacy.guarantee import CONDITIONS, upward

    def fill(text: str, indent: str = "") -> str:
        return textwrap.fill(text, columns(100), initial_indent=indent, subsequent_indent=f"{indent}    ")

    look: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    beside = FileSystemLoader(Path(__file__).parent)
    here = Environment(loader=beside, undefined=StrictUndefined, autoescape=select_autoescape(["html.j2"]), **look)

    def up(bound: float | None, digits: int = 6) -> str:
        return "none" if bound is None else upward(bound, digits)

    def down(bound: float, digits: int = 3) -> str:  # such as what attacks reach
        return upward(-bound, digits).lstrip("-")

    here.filters |= {"n": number, "up": up, "down": down, "fill": fill}
    here.globals["conditions"] = CONDITIONS
    return here.get_template(name)


def words(macro: str, *values: Any) -> str:
    """A macro of ``words.txt.j2``, filled in."""
    return fitted(_macro(macro)(*values).removesuffix("\n"))


def prose(macro: str, *values: Any) -> str:
    """A macro's words as one paragraph."""
    return " ".join(_macro(macro)(*values).split())


def _macro(name: str) -> Callable[..., str]:
    return getattr(_template("words.txt.j2").module, name)  # type: ignore[no-any-return]


def answer(as_json: bool, found: Any, macro: str, *values: Any, readable: bool = False) -> None:
    """What was found: as JSON, or in the words of a macro."""
    if as_json:
        print_json(found, readable=readable)
    else:
        echo(words(macro, *values))


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


class Screen(Console):
    """Standard output for tables and words, in which rich reads no markup."""

    def __init__(self, width: int = WIDTH, markup: bool = False) -> None:
        super().__init__(highlight=False, markup=markup, emoji=False, width=columns(width))

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(shown(one) if isinstance(one, str) else one for one in objects), **how)

    def fits(self, made: Table, wrap: bool = False) -> bool:
        needs = Measurement.get(self, self.options.update(max_width=10_000), made)
        return (needs.minimum if wrap else needs.maximum) <= self.width

    def table(
        self, lines: Sequence[Sequence[str]], groups: int = 0, wrap: bool = False, kept: int = 1, **look: Any
    ) -> None:
        """See `table`; where it is too wide, several tables below each other, each with the first columns."""
        first = max(kept, groups)

        def part(places: Sequence[int]) -> Table:
            return table([[line[place] for place in (*range(first), *places)] for line in lines], groups, wrap, **look)

        parts: list[list[int]] = [[]]
        for place in range(first, len(lines[0])):
            if parts[-1] and not self.fits(part([*parts[-1], place]), wrap):
                parts.append([])
            parts[-1].append(place)
        for number, made in enumerate(map(part, parts)):
            if number:
                super().print()
            if not self.fits(made, wrap):
                for column in made.columns:
                    column.no_wrap = False
            super().print(made)


def table(lines: Sequence[Sequence[str]], groups: int = 0, wrap: bool = False, **look: Any) -> Table:
    """The first line holds the headings. The first column stands to the left, the others to the right.

    Args:
        groups: rows with the same first cell have a line around them, and their first cells so often only once.
        wrap: whether all columns but the first may go on in a next line.
        look: of the table, for rich.
    """
    lines = [[*map(shown, line)] for line in lines]
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
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(map(csv_cell, names))
    writer.writerows([csv_cell(row.get(name, "")) for name in names] for row in rows)
    return lines.getvalue()


def check_file(out: Path | None, option: str = "--out") -> None:
    """UsageError where no such file can be written; told before the work."""
    if out is not None:
        writable(regular(out).resolve().parent, f"choose another {option}")


def output_folder(out: Path, option: str = "--out") -> Path:
    """The folder as an absolute path; see `writable`."""
    return writable(out.resolve(), f"choose another {option}")


def write_text(path: Path, text: str, option: str = "--out") -> None:
    """See `write_whole`."""
    write_whole(path.resolve(), text.encode(), f"choose another {option}")


def write_table(place: Path, content: Any, rows: Sequence[Mapping[str, Any]], page: str) -> str:
    """``place.json``, these rows as ``place.csv``, and ``place.html``; says where they are."""
    texts = {".json": json.dumps(content, indent=1, allow_nan=False), ".csv": as_csv(rows), ".html": page}
    for suffix, text in texts.items():
        write_text(place.with_suffix(suffix), text)
    return f"written: {', '.join(str(place.with_suffix(suffix)) for suffix in texts)}"


def csv_cell(value: Any) -> Any:
    """What a spreadsheet would take for a formula gets an apostrophe before it; numbers stay."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


# ---- How far the work has come ---------------------------------------------------------------------------------------


class Tell(Protocol):
    def __call__(self, line: str, kept: bool | None = None) -> None: ...


@contextmanager
def telling(first: str = "loading", lines: bool = True) -> Iterator[Tell]:
    """Says on standard error what is being done: on a terminal in one changing line, else, if wanted, a line each.

    A line that is told to be kept stays on a terminal too; one that is told not to be is not written elsewhere. Names
    stay names, in which rich reads no markup.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda line, kept=None: echo(line, error=True) if lines and kept is not False else None
        return
    with console.status(Text(first)) as status:

        def tell(line: str, kept: bool | None = None) -> None:
            status.update(Text(line))
            if kept:
                console.print(shown(line))

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
