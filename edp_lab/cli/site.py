"""``edp-lab course html``, ``slides``, ``api`` and ``dashboard``: the course for those who do not open a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from edp_lab.cli.paths import output_folder

if TYPE_CHECKING:
    from edp_lab.course.publish.runner import CourseRun

Executed = Annotated[
    Path, typer.Option(help="Where `edp-lab course run` has put its results; what is missing or old there is run.")
]


def html(
    out: Annotated[Path, typer.Option(help="Folder of the site.")] = Path("runs/site"),
    mode: ModeOption = Mode.quick,
    executed: Executed = DEFAULT_OUT,
    jobs: Jobs = DEFAULT_JOBS,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Write the executed course as a web site that needs no network; print its index's path.

    All notebooks, and the Markdown files beside them (glossary, teacher's guide). Exit status: 1 a notebook failed.
    """
    from edp_lab.course.publish.site import write_site

    folder = output_folder(out)
    course = _executed(notebooks_dir, executed, mode, None, jobs)
    print(write_site(course.runs, notebooks_dir, folder))


def slides(
    only: Only = None,
    out: Annotated[Path, typer.Option(help="Folder of the slides.")] = Path("runs/slides"),
    mode: ModeOption = Mode.quick,
    executed: Executed = DEFAULT_OUT,
    jobs: Jobs = DEFAULT_JOBS,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
) -> None:
    """Write the executed notebooks as reveal.js slides that need no network; print their index's path.

    Exit status: 1 a notebook failed.
    """
    from edp_lab.course.publish.site import write_slides

    folder = output_folder(out)
    course = _executed(notebooks_dir, executed, mode, only, jobs)
    print(write_slides(course.runs, folder))


def api(out: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("runs/api")) -> None:
    """Write the reference of the Python package as web pages with a search box that need no network."""
    from edp_lab.course.publish.site import write_api

    print(write_api(output_folder(out)))


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
    from edp_lab.course.publish.runner import course_notebooks, run_course

    names = names_in(only)
    with listening(len(course_notebooks(notebooks_dir, names)), quiet=True) as listen:
        course = run_course(
            notebooks_dir,
            output_folder(executed, "--executed"),
            mode.value,
            names,
            jobs=jobs,
            resume=True,
            listen=listen,
        )
    if not course.ok:
        raise typer.Exit(1)
    return course
