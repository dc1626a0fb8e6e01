"""``edp-lab data``: which corpora there are, fetch them, make the synthetic one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from edp_lab.cli.options import App, output_folder
from edp_lab.cli.output import bar, print_json
from edp_lab.errors import UsageError

data_app = App(no_args_is_help=True, help="Corpora: list, fetch, make.")


@data_app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False) -> None:
    """Every corpus the course knows, its licence, and where it lies on this machine."""
    from edp_lab.corpora import list_corpora

    rows = list_corpora()
    if as_json:
        print_json([{**vars(r), "where": None if r.where is None else str(r.where)} for r in rows])
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        where = str(row.where) if row.where else f"not here: edp-lab data fetch {row.name}"
        count = "-" if row.utterances is None else f"{row.utterances:,}"
        print(f"{row.name:<{width}}  {count:>7}  {row.description}\n{'':<{width}}  {row.licence}; {where}")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `edp-lab data list`.")],
    to: Annotated[Path | None, "Data folder. (default: data/ of a checkout, else the cache)"] = None,
) -> None:
    """Download a corpus, check every file's checksum, and leave nothing half-written."""
    from edp_lab.corpora import FetchProgress
    from edp_lab.corpora import fetch as run

    with bar(name, TextColumn("{task.description}"), DownloadColumn()) as (update, _):

        def show(p: FetchProgress) -> None:
            update(p.done, p.size, description=f"file {p.number}/{p.of} {p.path}")

        folder = run(name, to, progress=show)
    print(folder)


@data_app.command()
def make(
    name: Annotated[str, typer.Argument(help="smart-home, or smart-home-communication, -health, -video.")],
    out: Annotated[Path, "JSONL file (.jsonl, .jsonl.gz) to write; any other name: packed."],
    utterances: Annotated[int, typer.Option(min=1, help="How many.")] = 4500,
    seed: Annotated[int, "Same seed, same corpus."] = 0,
) -> None:
    """Generate the synthetic smart-home corpus, of any size.

    A packed corpus is a folder that training maps into memory instead of reading: made for a million utterances.
    """
    from edp_lab.corpora.smart_home import DOMAINS, generate, pack, write_jsonl

    base, _, domain = name.partition("smart-home")[2].partition("-")
    if base or (domain and domain not in DOMAINS) or not name.startswith("smart-home"):
        raise UsageError(f"cannot make {name!r}: choose smart-home or smart-home- with one of {', '.join(DOMAINS)}")
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out")
    output_folder(out.parent).mkdir(parents=True, exist_ok=True)
    if out.name.endswith((".jsonl", ".jsonl.gz")):
        write_jsonl(generate(utterances, seed, domain or None), out)
    else:
        with bar("", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), total=utterances) as (update, _):
            pack(utterances, seed, out, domain or None, update)
    print(out)
