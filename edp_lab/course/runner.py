"""Run the course: each notebook through papermill, kept as an executed copy and as a web page, with an index.

Launch: ``edp-lab course run`` (what ``make course`` calls). A run fails on any error, also on one
raised in a slider's callback (see ``kernel.py``); a parameter that a notebook does not have is refused before
anything runs.
"""

from __future__ import annotations

import ast
import platform
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

import edp_lab
from edp_lab.course import pages
from edp_lab.course.kernel import ENGINE
from edp_lab.errors import UsageError
from edp_lab.models.files import write_whole


@dataclass(frozen=True)
class NotebookRun:
    """One executed notebook.

    Attributes:
        path: the notebook that was run.
        title: its first heading.
        seconds: wall-clock time, kernel start included.
        executed: the executed copy, with outputs, without widget state.
        html: the same as a web page.
        error: one sentence (notebook, cell, error), or None where every cell ran.
    """

    path: Path
    title: str
    seconds: float
    executed: Path
    html: Path
    error: str | None


@dataclass(frozen=True)
class CourseRun:
    """All notebooks of one ``run_course``, in course order, and the page that lists them."""

    runs: tuple[NotebookRun, ...]
    index: Path

    @property
    def ok(self) -> bool:
        return all(run.error is None for run in self.runs)


def course_notebooks(notebooks_dir: Path, only: Sequence[str] = ()) -> list[Path]:
    """The notebooks of a folder in course order, or those named in ``only`` (with or without suffix).

    Raises:
        UsageError: the folder has no notebooks, or none of that name.
    """
    found = {path.stem: path for path in sorted(notebooks_dir.glob("*.ipynb"))}
    if not found:
        raise UsageError(f"no notebooks in {notebooks_dir}: run this in a clone of the project, or give --notebooks")
    names = [Path(name).name.removesuffix(".ipynb") for name in only]
    for name in names:
        if name not in found:
            raise UsageError(f"there is no notebook {name!r} in {notebooks_dir}: choose from {', '.join(found)}")
    return [path for stem, path in found.items() if not names or stem in names]


def notebook_parameters(path: Path) -> dict[str, str]:
    """The names in a notebook's ``parameters`` cell and their defaults, as source text.

    Raises:
        UsageError: the file is missing, is no notebook, or is saved for a kernel other than ``python3``.
    """
    try:
        kernel = nbformat.read(path, as_version=4).metadata.get("kernelspec", {}).get("name")
    except FileNotFoundError:
        raise UsageError(f"there is no notebook {path}") from None
    except Exception:  # nbformat lets through whatever its walk over unexpected content meets
        raise UsageError(f"{path} is not a notebook: restore it, for instance with `git checkout`") from None
    if kernel != "python3":
        raise UsageError(f"{path} is saved for the kernel {kernel!r}: set metadata.kernelspec.name to 'python3'")
    return {name: found["default"] for name, found in papermill.inspect_notebook(path).items()}


def check_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    """Refuse what papermill lets pass: a name the notebook does not have, text for a number or the reverse.

    Raises:
        UsageError: naming the parameter.
    """
    known = notebook_parameters(path)
    for name, value in parameters.items():
        if name not in known:
            have = ", ".join(known) or "none (no cell is tagged 'parameters')"
            raise UsageError(f"{path.name} has no parameter {name!r}; it has: {have}")
        try:
            default = ast.literal_eval(known[name])
        except (ValueError, SyntaxError):
            continue
        if default is not None and isinstance(default, str) != isinstance(value, str):
            kind = "text" if isinstance(default, str) else "a number"
            raise UsageError(f"parameter {name!r} of {path.name} takes {kind} such as {known[name]}, not {value!r}")


def run_notebook(
    path: Path, out_dir: Path, parameters: Mapping[str, Any] | None = None, *, timeout: float = 600
) -> NotebookRun:
    """Execute one notebook in its own folder and write the executed copy and its page into ``out_dir``.

    Args:
        path: the notebook; it is not changed.
        out_dir: created where missing; earlier results of the same name are replaced, never half-written.
        parameters: values for names in the notebook's ``parameters`` cell.
        timeout: seconds that one cell may take.

    Returns:
        The run; an error inside the notebook is in its ``error``, it is not raised.

    Raises:
        UsageError: see ``notebook_parameters`` and ``check_parameters``; nothing has run then.
    """
    path, out_dir = path.resolve(), out_dir.resolve()
    check_parameters(path, parameters or {})
    out_dir.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    notebook, error = _execute(path, dict(parameters or {}), timeout)
    seconds = time.perf_counter() - started
    pages.freeze_widgets(notebook)
    notebook.metadata.papermill.update(input_path=path.name, output_path=path.name)  # no path of this machine
    run = NotebookRun(
        path,
        pages.title(notebook, path.stem),
        seconds,
        out_dir / path.name,
        out_dir / f"{path.stem}.html",
        error,
    )
    write_whole(run.executed, nbformat.writes(notebook).encode())
    pages.write_page(notebook, run.html, run.title)
    return run


def run_course(
    notebooks_dir: Path,
    out_dir: Path,
    mode: str = "quick",
    only: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None] = lambda text: print(text, end="", flush=True),
) -> CourseRun:
    """Run the course's notebooks one after the other; one that fails does not stop the next.

    Args:
        notebooks_dir, only: see ``course_notebooks``.
        out_dir: gets an executed copy and a page per notebook, and ``index.html``.
        mode: the value of every notebook's ``mode`` parameter, "quick" or "full".
        parameters: further parameters, which every chosen notebook must have.
        say: gets the progress line of each notebook in two pieces, before and after it ran.

    Raises:
        UsageError: see ``course_notebooks`` and ``run_notebook``; nothing has run then.
    """
    notebooks = course_notebooks(notebooks_dir, only)
    values = {"mode": mode, **(parameters or {})}
    for path in notebooks:
        check_parameters(path, values)
    runs = []
    for number, path in enumerate(notebooks, 1):
        say(f"[{number}/{len(notebooks)}] {path.name} ... ")
        run = run_notebook(path, out_dir, values)
        say(f"{'failed' if run.error else 'ok'} after {run.seconds:.1f} s\n")
        if run.error:
            say(f"      {run.error}\n")
        runs.append(run)
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    about = f"edp_lab {edp_lab.__version__} on Python {platform.python_version()}; {settings}."
    index = out_dir.resolve() / "index.html"
    pages.write_index(runs, index, about)
    return CourseRun(tuple(runs), index)


def _execute(path: Path, parameters: dict[str, Any], timeout: float) -> tuple[NotebookNode, str | None]:
    """The executed notebook and its error, if any; papermill writes to a folder of its own meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        options = {"engine_name": ENGINE, "kernel_name": "python3", "progress_bar": False, "cwd": path.parent}
        fallback = None
        try:
            papermill.execute_notebook(path, copy, parameters, execution_timeout=timeout, **options)
        except (PapermillExecutionError, DeadKernelError) as exception:
            fallback = f"{path.name}: {exception}"
        notebook = nbformat.read(copy, as_version=4)
    return notebook, _first_error(notebook, path.name) or fallback


def _first_error(notebook: NotebookNode, name: str) -> str | None:
    """The first error as a sentence; the cell is counted as in the source notebook, from 1, all cells."""
    added = {"injected-parameters", "papermill-error-cell-tag"}
    number = 0
    for cell in notebook.cells:
        number += not added & set(cell.metadata.get("tags", ()))
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                code = cell.source.strip().splitlines()[0]
                value = " ".join(re.sub(r"\x1b\[[0-9;]*m|<[^>]+>", "", output.evalue).split())
                return f"{name}, cell {number} ({code!r}): {output.ename}: {value}"
    return None
