"""``edp-lab course``: run the course's notebooks, list them, or open them in JupyterLab."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import edp_lab
from edp_lab.errors import UsageError

course_app = typer.Typer(help="Run the course's notebooks, list them, or open them.", no_args_is_help=True)

DEFAULT_NOTEBOOKS = (
    Path(edp_lab.__file__).parents[1] / "notebooks"
)  # a clone of the project has them beside the package
NotebooksDir = Annotated[
    Path,
    typer.Option("--notebooks", help="Folder of the notebooks.", show_default="the project's notebooks/"),
]


class Mode(StrEnum):
    """How long a notebook may take: quick is for a class and for CI, full for real results."""

    quick = "quick"
    full = "full"


@course_app.command("run")
def run(
    notebooks: Annotated[list[str] | None, typer.Argument(help="Names, such as 00_start; all if none.")] = None,
    mode: Annotated[Mode, typer.Option(help="quick: seconds per notebook; full: real training.")] = Mode.quick,
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A notebook parameter; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the executed copies and pages.")] = Path("runs/course"),
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Execute notebooks; write executed copies, web pages and an index; print the index's path last.

    Exit status: 0 all ran, 1 a notebook failed, 2 bad arguments.
    """
    from edp_lab.course.runner import run_course

    values = dict(_name_and_value(text) for text in parameter or ())
    course = run_course(
        notebooks_dir,
        out,
        mode.value,
        notebooks or (),
        values,
        say=lambda text: print(text, end="", flush=True, file=sys.stderr if as_json else sys.stdout),
    )
    if as_json:
        print(json.dumps({**asdict(course), "ok": course.ok}, default=str, indent=2))
    else:
        print(course.index)
    raise typer.Exit(0 if course.ok else 1)


@course_app.command("list")
def list_notebooks(notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Print each notebook's name and title, and its parameters with their defaults."""
    import nbformat

    from edp_lab.course.pages import title
    from edp_lab.course.runner import course_notebooks, notebook_parameters

    for path in course_notebooks(notebooks_dir):
        parameters = notebook_parameters(path)
        print(f"{path.stem}  {title(nbformat.read(path, as_version=4), path.stem)}")
        print("  " + " ".join(f"{name}={default}" for name, default in parameters.items()))


@course_app.command("lab", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context, notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS) -> None:
    """Open JupyterLab on the first notebook, on this machine only; it asks for no news and no updates.

    Further options go to JupyterLab, such as --no-browser, --port 8899, or --allow-root in a container.
    """
    command, environment = lab_command(notebooks_dir)
    raise typer.Exit(subprocess.run([*command, *context.args], env=environment, check=False).returncode)


def lab_command(notebooks_dir: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment that start JupyterLab with this interpreter: local, with a token, calling nobody."""
    settings = str(Path(edp_lab.__file__).parent / "course" / "jupyter")  # no offer to fetch news
    path = os.pathsep.join(filter(None, [settings, os.environ.get("JUPYTER_CONFIG_PATH")]))
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        "--MappingKernelManager.transport_encryption=auto",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        str(notebooks_dir / "00_start.ipynb"),
    ]
    return command, {**os.environ, "JUPYTER_CONFIG_PATH": path}


def _name_and_value(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` with a Python literal, or plain text, as the value."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise UsageError(f"--parameter takes NAME=VALUE, such as z0=0.1, not {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
