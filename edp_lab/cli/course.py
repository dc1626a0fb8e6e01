"""``edp-lab course``: run the course's notebooks, list, build and open them, grade answers, make them a web site."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import CORES, App
from edp_lab.cli.output import echo, fitted, output_folder, print_json, telling
from edp_lab.errors import UsageError
from edp_lab.files import comes_with

if TYPE_CHECKING:
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

    from edp_lab.course.publish.runner import course_notebooks, notebook_parameters
    from edp_lab.course.solutions import title

    for path in course_notebooks(notebooks_dir):
        parameters = notebook_parameters(path)
        echo(fitted(f"{path.stem}  {title(nbformat.read(path, as_version=4), path.stem)}"))
        echo(fitted("  " + " ".join(f"{name}={default}" for name, default in parameters.items())))


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
