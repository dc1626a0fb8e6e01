"""``edp-lab course grade``: the exercises of submitted notebooks, as a table and in words."""

from __future__ import annotations

import csv
import sys
from dataclasses import astuple, fields
from pathlib import Path
from typing import Annotated

import typer

from edp_lab.cli.course_options import DEFAULT_NOTEBOOKS, NotebooksDir


def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="One folder per student: DIR/ada/01_coins.ipynb.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row per exercise as CSV on stdout.")] = False,
    seed_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV with the columns student and seed; else seeds come from the names."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for the answers of one notebook, after its imports.")] = 60,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Judge the exercises in submitted notebooks. SUBMITTED CODE IS EXECUTED on this machine, with your rights.

    Run it in a container or in an account that has nothing to lose: each notebook has a process of its own with a time
    limit, which stops endless loops and crashes, but not malice.

    DIR has one folder per student, named after the student. In it (or deeper), every notebook whose name begins with a
    number of the course, such as 01, is graded. Only cells that begin with "# EXERCISE name" are run, after the imports
    and parameters of the course's own notebook; what an answer needs must be in its cell.

    CSV columns: student, notebook, exercise, status (solved, wrong, open, missing, timeout, crashed or unreadable),
    message, seed. A line per student in words goes to the terminal. Exit status: 0 graded, whatever the answers are;
    2 bad arguments.
    """
    from rich.console import Console

    from edp_lab.course.publish.grading import Grade, Grader, read_seeds, strays, students, total

    seeds = students(folder, read_seeds(seed_from) if seed_from else None)
    grader = Grader(notebooks_dir, timeout)
    console = Console(stderr=as_csv, highlight=False, markup=False, emoji=False, soft_wrap=True)  # names are names
    table = csv.writer(sys.stdout, lineterminator="\n")

    def tell(name: str, grades: list[Grade]) -> None:
        console.print(f"{name}: {total(grades)}")
        if as_csv:
            table.writerows(map(_cell, astuple(row)) for row in grades)

    if as_csv:
        table.writerow(field.name for field in fields(Grade))
    for place, seed in seeds.items():
        with console.status(place.name):
            grades = grader.grade(place, seed)
        tell(place.name, grades)
    for row in strays(folder):
        tell("in no student's folder", [row])


def _cell(value: str | int) -> str:
    """On one line, and nothing that a spreadsheet takes for a formula."""
    text = " ".join(str(value).split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
