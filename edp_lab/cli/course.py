"""``edp-lab course``: run the course's notebooks, list them, or open them in JupyterLab."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from edp_lab.cli import site as publish
from edp_lab.cli.course_options import (
    DEFAULT_JOBS,
    DEFAULT_NOTEBOOKS,
    DEFAULT_OUT,
    Jobs,
    Mode,
    ModeOption,
    NotebooksDir,
    Only,
    listening,
    names_in,
)
from edp_lab.cli.grade import grade
from edp_lab.cli.paths import output_folder
from edp_lab.errors import UsageError

course_app = typer.Typer(help="Run the course's notebooks, list them, or open them.", no_args_is_help=True)
course_app.command("grade")(grade)


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
    timeout: Annotated[float, typer.Option(help="Seconds that one cell may take.")] = 600,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip what went well in --out before and has not changed since.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the executed copies and pages.")] = DEFAULT_OUT,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Execute notebooks; write executed copies, web pages and an index; print the index's path last.

    With --json: a list of {notebook, status ("ok" or "failed"), seconds, memory_mb, error}.
    Exit status: 0 all ran, 1 a notebook failed, 2 bad arguments.
    """
    from edp_lab.course.publish.runner import course_notebooks, run_course

    values = dict(_name_and_value(text) for text in parameter or ())
    names = [*(notebooks or ()), *names_in(only)]
    with listening(len(course_notebooks(notebooks_dir, names)), quiet=as_json) as listen:
        course = run_course(
            notebooks_dir,
            output_folder(out),
            mode.value,
            names,
            values,
            jobs=jobs,
            timeout=timeout,
            resume=resume,
            listen=listen,
        )
    print(json.dumps([run.row for run in course.runs], indent=2) if as_json else course.index)
    raise typer.Exit(0 if course.ok else 1)


@course_app.command("list")
def list_notebooks(notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Print each notebook's name and title, and its parameters with their defaults."""
    import nbformat

    from edp_lab.course.publish.pages import title
    from edp_lab.course.publish.runner import course_notebooks, notebook_parameters

    for path in course_notebooks(notebooks_dir):
        parameters = notebook_parameters(path)
        print(f"{path.stem}  {title(nbformat.read(path, as_version=4), path.stem)}")
        print("  " + " ".join(f"{name}={default}" for name, default in parameters.items()))


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
            print(sentence, file=sys.stderr)
        if sentences:
            print("run `edp-lab course build`, and remove what has no source", file=sys.stderr)
        raise typer.Exit(1 if sentences else 0)
    for path in builder.build(notebooks_dir):
        print(path)


@course_app.command("lab", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context, notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Open JupyterLab on the first notebook, on this machine only; it asks for no news and no updates.

    Further options go to JupyterLab, such as --no-browser, --port 8899, or --allow-root in a container.
    """
    from edp_lab.course.publish.runner import course_notebooks
    from edp_lab.course.publish.serve import lab_command, serve

    course_notebooks(notebooks_dir)  # else Jupyter says in its own way that there is none
    command, environment = lab_command(notebooks_dir)
    raise typer.Exit(serve([*command, *context.args], environment))


course_app.command("html")(publish.html)
course_app.command("slides")(publish.slides)
course_app.command("api")(publish.api)
course_app.command("dashboard", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    publish.dashboard
)


def _name_and_value(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` with a Python literal, or plain text, as the value."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise UsageError(f"--parameter takes NAME=VALUE, such as z0=0.1, not {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
