"""``edp-lab claims``: what the two sources claim, and what holds."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edp_lab.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from edp_lab.reproduce.claims import ClaimsTable, Entry

WIDTH = 120
DETAILED = 3  # so many claims or fewer are shown with all that was measured


def claims(
    run: Annotated[bool, typer.Option("--run", help="Compute the evidence again: all of it takes minutes.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Claims such as P3 or T12; several with commas, or repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --run: also write the whole ledger to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Every claim of the paper (P) and the thesis (T): its verdict, the evidence, the notebook cell and the test.

    Without --run it shows the ledger that is committed; with few claims, all that was measured.
    """
    from edp_lab.reproduce.claims import find, read_table

    ids = [one.strip() for some in only or () for one in some.split(",")]
    chosen = [claim.id for claim in find(ids)]
    _refuse(out, run, ids)
    table = _computed(chosen) if run else read_table()
    if out is not None:
        _write(out, table.as_json())
    entries = [entry for entry in table.entries if entry.id in chosen]
    if as_json:
        print(json.dumps([entry.as_json() for entry in entries], indent=1, allow_nan=False, ensure_ascii=False))
    else:
        _show(table, entries, committed=not run)


def _refuse(out: Path | None, run: bool, ids: Sequence[str]) -> None:
    """
    Raises:
        UsageError: a file that makes no sense, before anything is computed.
    """
    from edp_lab.errors import UsageError

    if out is None:
        return
    if not run:
        raise UsageError("--out writes what --run computes: add --run")
    if ids:
        raise UsageError("--out writes the whole ledger: leave out --only")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"{out} cannot be written: give --out a file in a folder that exists")


def _write(out: Path, text: str) -> None:
    from edp_lab.errors import UsageError
    from edp_lab.models.files import write_whole

    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): choose another --out") from error


# ---- Computing -------------------------------------------------------------------------------------------------------


def _computed(chosen: Sequence[str]) -> ClaimsTable:
    """Progress is on standard error: a bar on a terminal, everywhere a line for each claim."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from edp_lab.cli.bench import surroundings
    from edp_lab.reproduce.claims import ClaimsTable, compute, find

    torch.set_num_threads(1)  # networks this small gain nothing from a second one
    console, entries = Console(stderr=True, highlight=False, markup=False), []
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(chosen))
        for claim in find(chosen):
            entry = compute(claim, lambda what, now=claim.id: bar.update(task, description=f"{now} {what}"))  # type: ignore[misc]
            entries.append(entry)
            bar.update(task, advance=1, description="")
            line = f"{entry.id:<4} {entry.verdict:<22} {entry.seconds:6.1f} s"
            if console.is_terminal:
                console.print(line)
            else:
                print(line, file=sys.stderr, flush=True)
    return ClaimsTable(tuple(entries), **surroundings())


# ---- On a terminal ---------------------------------------------------------------------------------------------------


def _show(table: ClaimsTable, entries: Sequence[Entry], committed: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    if len(entries) <= DETAILED:
        for entry in entries:
            _detail(console, entry)
    else:
        _table(console, entries)
        console.print("edp-lab claims --only P2 shows all of one: quote, numbers, notebook cell, test.", style="dim")
    when = f"{table.date}, {table.machine}, edp-lab {table.versions['edp-lab']}"
    told = f"as committed ({when}); --run computes again" if committed else f"computed now ({when})"
    console.print(f"{_counted(entries)}; {told}")


def _counted(entries: Sequence[Entry]) -> str:
    """``56 claims: 3 holds, ...``, in the order of the verdicts."""
    from edp_lab.reproduce.evidence import Verdict

    found = Counter(entry.verdict for entry in entries)
    each = ", ".join(f"{verdict} {found[verdict]}" for verdict in Verdict if found[verdict])
    return f"{len(entries)} claim{'s' if len(entries) > 1 else ''}: {each}"


def _table(console: Console, entries: Sequence[Entry]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("", "claim", "verdict", "what was found", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, ratio in zip(table.columns, (None, 5, None, 9), strict=True):
        column.ratio, column.no_wrap = ratio, ratio is None
    table.expand = True
    for entry in entries:
        table.add_row(entry.id, entry.claim, str(entry.verdict), entry.said)
        table.add_section()
    console.print(table)


def _detail(console: Console, entry: Entry) -> None:
    console.print(f"{entry.id}  {entry.verdict}", style="bold")
    console.print(entry.claim)
    console.print(f"{entry.document}, {entry.source}", style="dim")
    console.print(f"\n{entry.said}\n")
    width = max(map(len, entry.measured))
    for name, value in entry.measured.items():
        console.print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, float) else f"  {name:<{width}}  {value}")
    console.print(f"\nfunction  {entry.function}\ncell      {entry.cell}\ntest      {entry.test}\n", soft_wrap=True)
