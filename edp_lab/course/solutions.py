"""Notebooks with their exercises solved: the runner executes these, and ``edp-lab course solutions`` writes them.

A notebook ``notebooks/03_edp_sgd.ipynb`` has a stub for each exercise, in a code cell that is tagged ``exercise`` and
begins with the line ``# EXERCISE name``. Its solutions are in ``notebooks/solutions/03.py``, each from such a line to
the next one.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from edp_lab.errors import UsageError
from edp_lab.files import write_whole

EXERCISE = "exercise"  # the tag of an exercise's cell
_NAME = re.compile(r"^# EXERCISE (\w+)[ \t]*$", re.MULTILINE)


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook; UsageError if the file is not one."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise UsageError(f"there is no notebook {path}") from None
    except Exception as error:  # nbformat raises whatever unexpected content causes
        raise UsageError(f"{path} is not a notebook: give a file such as 00_start.ipynb, or restore it") from error
    return notebook


def exercise_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The notebook's exercise cells by name, in order."""
    tagged = [cell for cell in notebook.cells if EXERCISE in cell.metadata.get("tags", ())]
    return {match[1]: cell for cell in tagged if (match := _NAME.match(cell.source))}


def read_solutions(path: Path) -> dict[str, str]:
    """The solutions of the notebook at `path` by exercise, each with its ``# EXERCISE`` line; none without a file."""
    file = path.parent / "solutions" / f"{path.name[:2]}.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    pieces = re.split(r"^(?=# EXERCISE )", text, flags=re.MULTILINE)
    return {match[1]: piece.strip() for piece in pieces if (match := _NAME.match(piece))}


def solved(notebook: NotebookNode, path: Path) -> NotebookNode:
    """A copy of the notebook at `path` in which each exercise's solution replaces its stub.

    Raises:
        UsageError: an exercise has no solution, or a solution has no exercise.
    """
    notebook, solutions = deepcopy(notebook), read_solutions(path)
    cells = exercise_cells(notebook)
    if unmatched := cells.keys() ^ solutions.keys():
        raise UsageError(f"{path.name} and its solutions differ in the exercise {sorted(unmatched)[0]!r}")
    for name, cell in cells.items():
        cell.source = solutions[name]
    return notebook


def title(notebook: NotebookNode, default: str) -> str:
    """The notebook's first heading, or `default`."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heading = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return heading[1].replace("`", "") if heading else default


def write_solutions(folder: Path, out: Path) -> None:
    """Write the notebooks of a folder with their solutions in place, and the pages and pictures beside them."""
    for path, name in course_files(folder).items():
        if path.suffix == ".ipynb":
            content = nbformat.writes(solved(read_notebook(path), path)).encode()
        else:
            content = path.read_bytes()
        write_whole(out / name, content)


def own_copy(folder: Path, out: Path) -> None:
    """Copy what a reader works with; a file that is there already is never written to."""
    for path, name in course_files(folder).items():
        if not (out / name).exists():
            write_whole(out / name, path.read_bytes())


def course_files(folder: Path) -> dict[Path, str]:
    """The notebooks of a folder, and the pages and pictures that they lead to, with their names within it."""
    patterns = ("*.ipynb", "glossary.md", "references.md", "images/*")
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {path: path.relative_to(folder).as_posix() for path in paths}
