"""``edp-lab course``: run the course's notebooks, list, build and open them, grade answers, make them a web site."""

from __future__ import annotations

import ast
import csv
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from edp_lab.cli.options import CORES, App
from edp_lab.cli.output import csv_cell, echo, fitted, output_folder, print_json, shown, telling
from edp_lab.errors import UsageError
from edp_lab.files import comes_with

if TYPE_CHECKING:
    from edp_lab.course.publish.grading import Grade
    from edp_lab.course.publish.runner import CellBegun, CourseRun, NotebookRun

DEFAULT_NOTEBOOKS = comes_with("notebooks")
DEFAULT_JOBS = min(2, os.cpu_count() or 1)
DEFAULT_OUT = Path("runs/course")
LAB_COPY = Path("edp-lab-course")  # where a reader works


class Mode(StrEnum):
    """How long a notebook may take: quick is for a class and for CI, full for real results."""

    quick = "quick"
    full = "full"


NotebooksDir = Annotated[
    Path, typer.Option("--notebooks", help="Folder of the notebooks.", show_default="the project's notebooks/")
]
ModeOption = Annotated[Mode, "quick: seconds per notebook; full: real training."]
Only = Annotated[str | None, "Numbers or names of notebooks, with commas between, such as 03,04; else all."]
Jobs = Annotated[int, "Notebooks at once; with two or more, each has one thread.", CORES]


def names_in(only: str | None) -> list[str]:
    """What `--only` names."""
    return [name.strip() for name in (only or "").split(",") if name.strip()]


OPTIONS_OF_OTHERS = {"allow_extra_args": True, "ignore_unknown_options": True}  # Jupyter's or Voila's

course_app = App(help="Run the course's notebooks, list them, or open them.", no_args_is_help=True)


# ---- Grading ---------------------------------------------------------------------------------------------------------


@course_app.command()
def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="One folder per student: DIR/ada/01_coins.ipynb.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row per exercise as CSV on stdout.")] = False,
    seed_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV with the columns student and seed; else seeds come from the names."),
    ] = None,
    timeout: Annotated[float, "Seconds for the answers of one notebook, after its imports."] = 60,
    sandbox: Annotated[bool, "Execute in bubblewrap (Linux): without network and without your files."] = False,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Judge the exercises in submitted notebooks. SUBMITTED CODE IS EXECUTED on this machine, with your rights.

    Give --sandbox, or run it in a container or in an account that has nothing to lose. Each notebook has a process of
    its own, with limits on time, memory and files, and judged from outside: endless loops, crashes and forged verdicts
    get nowhere, but without --sandbox the code can read and change your files.

    DIR has one folder per student, named after the student. In it (or deeper), every notebook whose name begins with a
    number of the course, such as 01, is graded. Only cells that begin with "# EXERCISE name" are run, after the imports
    and parameters of the course's own notebook; what an answer needs must be in its cell.

    CSV columns: student, notebook, exercise, status (solved, wrong, open, missing, timeout, crashed or unreadable),
    message, seed. A line per student in words goes to the terminal. Exit status: 0 graded, whatever the answers are;
    2 bad arguments.
    """
    from edp_lab.course.publish.confined import terms
    from edp_lab.course.publish.grading import Grade, Grader, read_seeds, strays, students, total

    seeds = students(folder, read_seeds(seed_from) if seed_from else None)
    grader = Grader(notebooks_dir, timeout, sandbox)
    echo(terms(timeout, sandbox), error=True)
    console = Console(stderr=as_csv, highlight=False, markup=False, emoji=False, soft_wrap=True)  # names are names
    table = csv.writer(sys.stdout, lineterminator="\n")

    def tell(name: str, grades: list[Grade]) -> None:
        console.print(_one_line(f"{name}: {total(grades)}"))
        if as_csv:
            table.writerows([csv_cell(_one_line(value)) for value in astuple(row)] for row in grades)

    if as_csv:
        table.writerow(field.name for field in fields(Grade))
    for place, seed in seeds.items():
        with console.status(Text(place.name)):
            grades = grader.grade(place, seed)
        tell(place.name, grades)
    for row in strays(folder):
        tell("in no student's folder", [row])


def _one_line(value: object) -> str:
    return shown(" ".join(str(value).split()))


# ---- Notebooks -------------------------------------------------------------------------------------------------------


@course_app.command("run")
def run(
    notebooks: Annotated[list[str] | None, typer.Argument(help="Names, such as 00_start; all if none.")] = None,
    mode: ModeOption = Mode.quick,
    only: Only = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter, for the notebooks that have it; repeatable."),
    ] = None,
    jobs: Jobs = DEFAULT_JOBS,
    timeout: Annotated[float, "Seconds that one cell may take.", {"min": 1, "max": 604_800}] = 600,
    resume: Annotated[bool, "Skip what went well in --out before and has not changed since."] = False,
    out: Annotated[Path, "Folder for the executed copies and pages."] = DEFAULT_OUT,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Execute notebooks; write executed copies, web pages and an index; print the index's path last.

    With --json: a list of {notebook, status ("ok" or "failed"), seconds, memory_mb, error}.
    Exit status: 0 all ran, 1 a notebook failed, 2 bad arguments.
    """
    values = dict(_name_and_value(text) for text in parameter or ())
    names = [*(notebooks or ()), *names_in(only)]
    how = {"parameters": values, "jobs": jobs, "timeout": timeout, "resume": resume}
    course = _run_course(notebooks_dir, out, "--out", mode, names, **how)
    if as_json:
        print_json([run.row for run in course.runs])
    else:
        echo(course.index)
    raise typer.Exit(0 if course.ok else 1)


@course_app.command("list")
def list_notebooks(notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Print each notebook's name and title, and its parameters with their defaults."""
    import nbformat

    from edp_lab.course.publish.build import title
    from edp_lab.course.publish.runner import course_notebooks, notebook_parameters

    for path in course_notebooks(notebooks_dir):
        parameters = notebook_parameters(path)
        echo(fitted(f"{path.stem}  {title(nbformat.read(path, as_version=4), path.stem)}"))
        echo(fitted("  " + " ".join(f"{name}={default}" for name, default in parameters.items())))


@course_app.command("build")
def build(
    check: Annotated[bool, typer.Option(help="Write nothing; exit 1 and name the notebooks that differ.")] = False,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """For authors: generate the students' and the instructors' notebooks from notebooks/source/.

    Students' copies in notebooks/ and instructors' copies in notebooks/instructor/ are overwritten. A code cell that
    begins with "# EXERCISE name" holds the stub, a line "# SOLUTION", and the solution; a cell tagged "instructor" is
    left out for students.
    """
    from edp_lab.course.publish import build as builder

    if check:
        sentences = builder.drift(notebooks_dir)
        for sentence in sentences:
            echo(sentence, error=True)
        if sentences:
            echo("run `edp-lab course build`, and remove what has no source", error=True)
        raise typer.Exit(1 if sentences else 0)
    for path in builder.build(notebooks_dir):
        echo(path)


@course_app.command("lab", context_settings=OPTIONS_OF_OTHERS)
def lab(
    context: typer.Context,
    instructor: Annotated[bool, "Copy the solutions and the sources, too."] = False,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Open JupyterLab on your own copy of the notebooks, on this machine only; it asks for no news and no updates.

    The copy is in edp-lab-course/, in the folder that you are in. What you change there is never overwritten. What you
    have not changed follows the course when that is updated.

    Further options go to JupyterLab, such as --no-browser, --port 8899, or --allow-root in a container.
    """
    from edp_lab.course.publish.runner import course_notebooks
    from edp_lab.course.publish.serve import lab_command, own_copy, serve

    course_notebooks(notebooks_dir)  # else Jupyter says in its own way that there is none
    folder = LAB_COPY.resolve()
    newer = own_copy(notebooks_dir, folder, instructor)
    echo(f"your own notebooks are in {folder}", error=True)
    if newer:
        changed = ", ".join(newer)
        echo(
            f"there is a newer {changed}: yours stays; to get the new one, move yours away and start again", error=True
        )
    command, environment = lab_command(folder)
    raise typer.Exit(serve([*command, *context.args], environment))


def _name_and_value(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` with a Python literal, or plain text, as the value."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise UsageError(f"--parameter takes NAME=VALUE, such as z0=0.1, not {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


# ---- Pages -----------------------------------------------------------------------------------------------------------

Executed = Annotated[Path, "Where `edp-lab course run` has put its results; what is missing or old there is run."]


@course_app.command()
def html(
    out: Annotated[Path, "Folder of the site."] = Path("runs/site"),
    mode: ModeOption = Mode.quick,
    executed: Executed = DEFAULT_OUT,
    jobs: Jobs = DEFAULT_JOBS,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Write the executed course as a web site that needs no network; print its index's path.

    All notebooks, and the Markdown files beside them (glossary, teacher's guide). Exit status: 1 a notebook failed.
    """
    from edp_lab.course.publish.pages import write_site

    folder = output_folder(out)
    echo(write_site(_executed(notebooks_dir, executed, mode, None, jobs).runs, notebooks_dir, folder))


@course_app.command()
def slides(
    only: Only = None,
    out: Annotated[Path, "Folder of the slides."] = Path("runs/slides"),
    mode: ModeOption = Mode.quick,
    executed: Executed = DEFAULT_OUT,
    jobs: Jobs = DEFAULT_JOBS,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Write the executed notebooks as reveal.js slides that need no network; print their index's path.

    Exit status: 1 a notebook failed.
    """
    from edp_lab.course.publish.slides import write_slides

    folder = output_folder(out)
    echo(write_slides(_executed(notebooks_dir, executed, mode, only, jobs).runs, folder))


@course_app.command()
def api(out: Annotated[Path, "Folder of the pages."] = Path("runs/api")) -> None:
    """Write the reference of the Python package as web pages with a search box that need no network."""
    from edp_lab.course.publish.pages import write_api

    echo(write_api(output_folder(out)))


@course_app.command(context_settings=OPTIONS_OF_OTHERS)
def dashboard(context: typer.Context, only: Only = None, notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Serve the panels without code or text, by Voila, on this machine only, to those who have the printed token.

    Further options go to Voila, such as --no-browser or --port 8899.
    """
    from edp_lab.course.publish.runner import course_notebooks
    from edp_lab.course.publish.serve import dashboard_command, panels_only, serve

    with panels_only(course_notebooks(notebooks_dir, names_in(only))) as folder:
        command, environment = dashboard_command(folder)
        code = serve([*command, *context.args], environment)
    raise typer.Exit(code)


def _executed(notebooks_dir: Path, executed: Path, mode: Mode, only: str | None, jobs: int) -> CourseRun:
    """The executed notebooks; those that are unchanged since an earlier run are taken from there."""
    course = _run_course(notebooks_dir, executed, "--executed", mode, names_in(only), jobs=jobs, resume=True)
    if not course.ok:
        raise typer.Exit(1)
    return course


def _run_course(notebooks_dir: Path, out: Path, option: str, mode: Mode, names: list[str], **how: Any) -> CourseRun:
    from edp_lab.course.publish.runner import course_notebooks, run_course

    with listening(len(course_notebooks(notebooks_dir, names))) as listen:
        return run_course(notebooks_dir, output_folder(out, option), mode.value, names, listen=listen, **how)


# ---- Progress --------------------------------------------------------------------------------------------------------


@contextmanager
def listening(total: int) -> Iterator[Callable[[CellBegun | NotebookRun], None]]:
    """A listener for `run_course`: says on a terminal which cells are running, and everywhere what has ended."""
    from edp_lab.course.publish.runner import NotebookRun

    running: dict[Path, str] = {}
    ended = 0
    with telling("starting") as tell:

        def listen(event: CellBegun | NotebookRun) -> None:
            nonlocal ended
            if isinstance(event, NotebookRun):
                ended += 1
                running.pop(event.path, None)
                tell(_line(event, ended, total), True)
            else:
                running[event.path] = f"{event.path.stem}, cell {event.done + 1} of {event.of}"
                tell("; ".join(running.values()), False)

        yield listen


def _line(run: NotebookRun, number: int, total: int) -> str:
    """``[3/12] 02_dp_sgd  ok  12.3 s  640 MB``; below it the error of a run that failed."""
    verdict = "failed" if run.error else "ok, as before" if run.reused else "ok"
    line = f"[{number}/{total}] {run.path.stem:<26} {verdict:<13} {run.seconds:6.1f} s {run.memory_mb:6.0f} MB"
    return f"{line}\n      {run.error}" if run.error else line
