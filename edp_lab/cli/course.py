"""``edp-lab course``: run the course's notebooks, open them in JupyterLab, or write copies with solutions."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from edp_lab.cli.terminal import App, echo, output_folder, print_json
from edp_lab.errors import UsageError
from edp_lab.files import check_new, comes_with, once
from edp_lab.training.config import CORES

DEFAULT_NOTEBOOKS = comes_with("notebooks")
DEFAULT_JOBS = min(2, os.cpu_count() or 1)
LAB_COPY = Path("edp-lab-course")  # the reader's copies of the notebooks
LAB_SETTINGS = Path(__file__).parents[1] / "course" / "jupyter"  # turns off JupyterLab's news


class Mode(StrEnum):
    """Amount of computation in a notebook: quick for classes and CI, full for real results."""

    quick = "quick"
    full = "full"


NotebooksDir = Annotated[
    Path, typer.Option("--notebooks", help="Folder with the notebooks.", show_default="the project's notebooks/")
]

course_app = App(help="Run or open the notebooks, or write their solutions.", no_args_is_help=True)


@course_app.command("run")
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="Names or numbers of notebooks, such as 00_start or 03. (default: all)")
    ] = None,
    mode: Annotated[Mode, "Amount of computation: quick (seconds per notebook) or full (real training)."] = Mode.quick,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a parameter in all notebooks that have it (repeatable)."),
    ] = None,
    strict: Annotated[
        bool, "Check students' notebooks: treat the arguments as files, and execute these unchanged."
    ] = False,
    jobs: Annotated[int, "Number of notebooks to run in parallel.", CORES] = DEFAULT_JOBS,
    timeout: Annotated[int, "Time limit per cell, in seconds.", {"min": 1, "max": 604_800}] = 600,
    out: Annotated[Path, "Folder for the executed copies and web pages."] = Path("runs/course"),
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Execute notebooks with their solutions, write executed copies and web pages, and print the path of the index.

    With --json, print a list of {notebook, title, status ("ok" or "failed"), seconds, error}.

    With --strict, execute students' notebooks and print the verdicts on their exercises as a JSON list of {notebook,
    verdicts, error}. The students' code runs with your permissions; if you do not trust the code, use a container.

    Exit status: 0 if all notebooks ran, 1 if a notebook failed, 2 for bad arguments.
    """
    from edp_lab.course.run import run_course, verdicts

    if strict:
        if not notebooks:
            raise UsageError("--strict checks students' notebooks: name their files")
        print_json([verdicts(Path(name), timeout) for name in notebooks or ()])
        return
    values = {"mode": mode.value, **once([*map(_name_and_value, parameter or ())])}
    rows = []
    for row in run_course(notebooks_dir, output_folder(out).resolve(), values, notebooks or (), jobs, timeout):
        rows.append(row)
        echo(f"{row['notebook']:<26} {row['status']:<6} {row['seconds']:6.1f} s  {row['error'] or ''}", error=True)
    if as_json:
        print_json(rows)
    else:
        echo(out.resolve() / "index.html")
    raise typer.Exit(int(any(row["error"] for row in rows)))


def _name_and_value(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``; the value is a Python literal or plain text."""
    from edp_lab.course.run import literal

    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise UsageError(f"--parameter takes NAME=VALUE, such as z0=0.1, not {text!r}")
    return name, literal(value)


@course_app.command("solutions")
def solutions(
    out: Annotated[Path, "Folder for the notebooks."] = Path("edp-lab-solutions"),
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Write copies of the notebooks with all exercises solved (for teachers) to a new folder, and print its path."""
    from edp_lab.course.run import course_notebooks, write_solutions

    course_notebooks(notebooks_dir)
    check_new(out)
    write_solutions(notebooks_dir, output_folder(out))
    echo(out.resolve())


@course_app.command("lab", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context, notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Open your own copy of the notebooks in JupyterLab, on this machine only, without checks for news or updates.

    The copy is in edp-lab-course/ in the current folder. Existing files are never overwritten. To get a fresh copy
    of a notebook, rename yours.

    Other options are passed to JupyterLab, such as --no-browser, --port 8899, or --allow-root in a container.
    """
    from edp_lab.course.run import course_notebooks, own_copy

    first = course_notebooks(notebooks_dir)[0]
    own_copy(notebooks_dir, LAB_COPY)
    echo(f"your copy of the notebooks is in {LAB_COPY.resolve()}", error=True)
    here = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(LAB_SETTINGS), here]))
    options = [
        "--MappingKernelManager.transport_encryption=auto",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        f"--LabApp.default_url=/lab/tree/{first.name}",
        str(LAB_COPY),
    ]
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance([*options, *context.args])
