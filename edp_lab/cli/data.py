"""``edp-lab data``: which corpora there are, fetch them, make the synthetic one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from edp_lab.cli.paths import output_folder

data_app = typer.Typer(no_args_is_help=True, help="Corpora: list, fetch, make.")


@data_app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Every corpus the course knows, its licence, and where it lies on this machine."""
    from edp_lab.corpora import list_corpora

    rows = list_corpora()
    if as_json:
        table = [{**vars(r), "where": None if r.where is None else str(r.where)} for r in rows]
        print(json.dumps(table, indent=2))
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        where = str(row.where) if row.where else f"not here: edp-lab data fetch {row.name}"
        count = "-" if row.utterances is None else f"{row.utterances:,}"
        print(f"{row.name:<{width}}  {count:>7}  {row.description}\n{'':<{width}}  {row.licence}; {where}")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `edp-lab data list`.")],
    to: Annotated[Path | None, typer.Option(help="Data folder. (default: data/ of a checkout, else the cache)")] = None,
) -> None:
    """Download a corpus, check every file's checksum, and leave nothing half-written."""
    from rich.console import Console
    from rich.progress import DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    from edp_lab.corpora import Progress
    from edp_lab.corpora import fetch as run

    columns = (TextColumn("{task.description}"), DownloadColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None)

        def show(p: Progress) -> None:
            description = f"file {p.number}/{p.of} {p.path}"
            bar.update(task, description=description, completed=p.done, total=p.size)

        folder = run(name, to, progress=show)
    print(folder)


@data_app.command()
def make(
    name: Annotated[str, typer.Argument(help="smart-home, or smart-home-communication, -health, -video.")],
    out: Annotated[Path, typer.Option(help="JSONL file (.jsonl, .jsonl.gz) to write; any other name: packed.")],
    utterances: Annotated[int, typer.Option(min=1, help="How many.")] = 4500,
    seed: Annotated[int, typer.Option(help="Same seed, same corpus.")] = 0,
) -> None:
    """Generate the synthetic smart-home corpus, of any size.

    A packed corpus is a folder that training maps into memory instead of reading: made for a million utterances.
    """
    from edp_lab.corpora.smart_home import DOMAINS, generate, pack, write_jsonl
    from edp_lab.errors import UsageError

    base, _, domain = name.partition("smart-home")[2].partition("-")
    if base or (domain and domain not in DOMAINS) or not name.startswith("smart-home"):
        raise UsageError(f"cannot make {name!r}: choose smart-home or smart-home- with one of {', '.join(DOMAINS)}")
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out")
    output_folder(out.parent).mkdir(parents=True, exist_ok=True)
    if out.name.endswith((".jsonl", ".jsonl.gz")):
        write_jsonl(generate(utterances, seed, domain or None), out)
    else:
        with _counting(utterances) as progress:
            pack(utterances, seed, out, domain or None, progress)
    print(out)


@contextmanager
def _counting(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
