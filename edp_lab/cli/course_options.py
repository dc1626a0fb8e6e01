"""What the commands of ``edp-lab course`` share: options, and the progress of notebooks that run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

import edp_lab

if TYPE_CHECKING:
    from edp_lab.course.publish.runner import NotebookRun, Progress

DEFAULT_NOTEBOOKS = (
    Path(edp_lab.__file__).parents[1] / "notebooks"
)  # a clone of the project has them beside the package
DEFAULT_JOBS = min(2, os.cpu_count() or 1)
DEFAULT_OUT = Path("runs/course")


class Mode(StrEnum):
    """How long a notebook may take: quick is for a class and for CI, full for real results."""

    quick = "quick"
    full = "full"


NotebooksDir = Annotated[
    Path,
    typer.Option("--notebooks", help="Folder of the notebooks.", show_default="the project's notebooks/"),
]
ModeOption = Annotated[Mode, typer.Option("--mode", help="quick: seconds per notebook; full: real training.")]
Only = Annotated[
    str | None, typer.Option(help="Numbers or names of notebooks, with commas between, such as 03,04; else all.")
]
Jobs = Annotated[int, typer.Option(help="Notebooks at once; with two or more, each has one thread.")]


def names_in(only: str | None) -> list[str]:
    """What `--only` names."""
    return [name.strip() for name in (only or "").split(",") if name.strip()]


@contextmanager
def listening(total: int, quiet: bool = False) -> Iterator[Callable[[Progress | NotebookRun], None]]:
    """A listener for `run_course`: a bar per running notebook on a terminal, a line per finished one everywhere.

    `quiet`: both go to standard error, because standard output is for JSON.
    """
    from edp_lab.course.publish.runner import NotebookRun

    console, ended = Console(stderr=quiet), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        running: dict[Path, TaskID] = {}

        def listen(event: Progress | NotebookRun) -> None:
            nonlocal ended
            if isinstance(event, NotebookRun):
                ended += 1
                if event.path in running:
                    bars.remove_task(running.pop(event.path))
                console.print(_line(event, ended, total), markup=False, highlight=False, soft_wrap=True)
            else:
                if event.path not in running:
                    running[event.path] = bars.add_task(f"{event.path.stem}, cell")
                bars.update(running[event.path], completed=event.done + 1, total=event.of)

        yield listen


def _line(run: NotebookRun, number: int, total: int) -> str:
    """``[3/12] 02_dp_sgd  ok  12.3 s  640 MB``; below it the error of a run that failed."""
    verdict = "failed" if run.error else "ok, as before" if run.reused else "ok"
    line = f"[{number}/{total}] {run.path.stem:<26} {verdict:<13} {run.seconds:6.1f} s {run.memory_mb:6.0f} MB"
    return f"{line}\n      {run.error}" if run.error else line
