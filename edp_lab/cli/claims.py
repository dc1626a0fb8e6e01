"""``edp-lab claims``: what the two sources claim, and what holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from edp_lab.cli.bench import surroundings
from edp_lab.cli.options import Json, check_file, commas, write_text
from edp_lab.cli.output import bar, print_json, screen
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from edp_lab.reproduce.claims import ClaimsTable, Entry

DETAILED = 3  # so many claims or fewer are shown with all that was measured


def claims(
    run: Annotated[bool, "Compute the evidence again: all of it takes minutes."] = False,
    only: Annotated[list[str] | None, "Claims such as P3 or T12; several with commas, or repeated."] = None,
    out: Annotated[Path | None, "With --run: also write the whole ledger to this JSON file."] = None,
    as_json: Json = False,
) -> None:
    """Every claim of the paper (P) and the thesis (T): its verdict, the evidence, the notebook cell and the test.

    Without --run it shows the ledger that is committed; with few claims, all that was measured.
    """
    from edp_lab.reproduce.claims import find, read_table

    ids = commas(*only or ())
    chosen = [claim.id for claim in find(ids)]
    if out is not None and not run:
        raise UsageError("--out writes what --run computes: add --run")
    if out is not None and ids:
        raise UsageError("--out writes the whole ledger: leave out --only")
    check_file(out)
    table = _computed(chosen) if run else read_table()
    if out is not None:
        write_text(out, table.as_json())
    entries = [entry for entry in table.entries if entry.id in chosen]
    if as_json:
        print_json([entry.as_json() for entry in entries], indent=1, allow_nan=False, ensure_ascii=False)
    else:
        _show(table, entries, committed=not run)


def _computed(chosen: Sequence[str]) -> ClaimsTable:
    """Progress is on standard error: a bar on a terminal, everywhere a line for each claim."""
    import torch

    from edp_lab.reproduce.claims import ClaimsTable, compute, find

    torch.set_num_threads(1)  # networks this small gain nothing from a second one
    entries: list[Entry] = []
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with bar("", *columns, total=len(chosen)) as (update, say):
        for claim in find(chosen):
            entry = compute(claim, lambda what, now=claim.id: update(description=f"{now} {what}"))  # type: ignore[misc]
            entries.append(entry)
            update(len(entries), description="")
            say(f"{entry.id:<4} {entry.verdict:<22} {entry.seconds:6.1f} s")
    return ClaimsTable(tuple(entries), **surroundings())


# ---- On a terminal ---------------------------------------------------------------------------------------------------


def _show(table: ClaimsTable, entries: Sequence[Entry], committed: bool) -> None:
    console = screen()
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
    from edp_lab.reproduce.claims import Verdict

    found = Counter(entry.verdict for entry in entries)
    each = ", ".join(f"{verdict} {found[verdict]}" for verdict in Verdict if found[verdict])
    return f"{len(entries)} claim{'s' if len(entries) > 1 else ''}: {each}"


def _table(console: Console, entries: Sequence[Entry]) -> None:
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
