"""Student and instructor notebooks from one source: `notebooks/source/NN_name.ipynb` gives `notebooks/NN_name.ipynb`
and `notebooks/instructor/NN_name.ipynb`.

Launch: ``edp-lab course build``. An exercise of the source is a code cell with both texts, one above the other:

    # EXERCISE clip
    def clip(gradient, C):
        \"\"\"The gradient, shrunk to length C at most.\"\"\"
    # SOLUTION
    def clip(gradient, C):
        return gradient * min(1, C / np.linalg.norm(gradient))

Students get the first line and what stands above ``# SOLUTION``, instructors the first line and what stands below. A
cell tagged ``instructor`` (a note for the teacher) is left out for students. All else is copied, without outputs, and
gets its links (``links.py``). The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from edp_lab.course.publish.links import Links
from edp_lab.errors import UsageError
from edp_lab.files import write_whole

INSTRUCTOR = "instructor"  # the tag of a teacher's cell, and the folder of the teacher's notebooks
_EXERCISE = re.compile(r"# EXERCISE (\w+)[ \t]*(?:\n|$)")
_SOLUTION = re.compile(r"^# SOLUTION[ \t]*$\n?", re.MULTILINE)
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class ExerciseCell(NamedTuple):
    """The two texts of an exercise; each begins with the line ``# EXERCISE name``."""

    name: str
    stub: str
    solution: str


def exercise_name(source: str) -> str | None:
    """The name in a cell's first line ``# EXERCISE name``, None in any other cell."""
    found = _EXERCISE.match(source)
    return found[1] if found else None


def exercise_cell(source: str) -> ExerciseCell | None:
    """The exercise in a source notebook's code cell, None in an ordinary cell.

    Raises:
        UsageError: the cell is half an exercise.
    """
    name, parts = exercise_name(source), _SOLUTION.split(source)
    if name is None:
        if len(parts) > 1:
            raise UsageError("a cell has a line `# SOLUTION`, but does not begin with `# EXERCISE name`")
        return None
    if len(parts) != 2 or not all(part.strip() for part in (parts[0].partition("\n")[2], parts[1])):
        raise UsageError(f"exercise {name!r} needs a stub, one line `# SOLUTION`, and a solution below it")
    return ExerciseCell(name, parts[0].rstrip(), f"# EXERCISE {name}\n{parts[1].strip()}")


def exercise_cells(notebook: NotebookNode) -> dict[str, ExerciseCell]:
    """The exercises of a source notebook by name, in their order.

    Raises:
        UsageError: a cell is half an exercise, or two have one name.
    """
    found: dict[str, ExerciseCell] = {}
    for cell in notebook.cells:
        exercise = exercise_cell(cell.source) if cell.cell_type == "code" else None
        if exercise and exercise.name in found:
            raise UsageError(f"two cells are called `# EXERCISE {exercise.name}`: name one differently")
        if exercise:
            found[exercise.name] = exercise
    return found


def read_sources(notebooks_dir: Path) -> dict[str, NotebookNode]:
    """The source notebooks of the course by name, see `read_source`."""
    return {path.name: read_source(path) for path in sorted((notebooks_dir / "source").glob("*.ipynb"))}


def read_source(path: Path) -> NotebookNode:
    """A source notebook.

    Raises:
        UsageError: it is no notebook, a cell has no id of its own, or an exercise is not whole.
    """
    try:
        text = path.read_text(encoding="utf-8")
        ids = [cell.get("id") for cell in json.loads(text)["cells"]]  # nbformat would draw new ones, each time others
        if None in ids or len(set(ids)) < len(ids):
            raise UsageError(f"{path} has cells without an id of their own: save it once in JupyterLab")
        notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
    except UsageError:
        raise
    except Exception as error:  # nbformat lets through whatever its walk over unexpected content meets
        raise UsageError(f"{path} is not a notebook: restore it, for instance with `git checkout`") from error
    try:
        exercise_cells(notebook)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error}") from None
    return notebook


def edition(source: NotebookNode, *, for_students: bool) -> NotebookNode:
    """A source notebook with stubs for students, or with solutions and the cells tagged ``instructor``."""
    notebook = deepcopy(source)
    notebook.metadata = nbformat.from_dict(_METADATA)
    if for_students:
        notebook.cells = [cell for cell in notebook.cells if INSTRUCTOR not in cell.metadata.get("tags", ())]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of the author's last run
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if exercise := exercise_cell(cell.source):
                cell.source = exercise.stub if for_students else exercise.solution
    return notebook


def build(notebooks_dir: Path) -> list[Path]:
    """Write both versions of every source notebook under a folder; the paths that changed.

    Raises:
        UsageError: there are no sources, or one is not whole; nothing has been written then.
    """
    generated = _generated(notebooks_dir)
    (notebooks_dir / INSTRUCTOR).mkdir(exist_ok=True)
    changed = [path for path in generated if _differs(path, generated[path])]
    for path in changed:
        write_whole(path, generated[path])
    return changed


def drift(notebooks_dir: Path) -> list[str]:
    """What `build` would change, a sentence each; notebooks that no source gives are named too.

    Raises:
        UsageError: as `build`.
    """
    generated = _generated(notebooks_dir)
    present = sorted([*notebooks_dir.glob("*.ipynb"), *(notebooks_dir / INSTRUCTOR).glob("*.ipynb")])
    faults = {path: "differs from its source" for path, text in generated.items() if _differs(path, text)}
    faults |= {path: "has no source" for path in present if path not in generated}
    return [f"{path.relative_to(notebooks_dir).as_posix()} {fault}" for path, fault in faults.items()]


def context(notebook: NotebookNode, name: str) -> str:
    """Code for the names that an exercise's cell may use: what earlier cells import, and the ``parameters`` cell.

    Raises:
        UsageError: the notebook has no such exercise.
    """
    made = ast.Module([], [])
    for cell in _code(notebook):
        if exercise_name(cell.source) == name:
            return ast.unparse(made)
        if exercise_name(cell.source) is None:
            parameters = "parameters" in cell.metadata.get("tags", ())
            made.body += [
                statement
                for statement in ast.parse(cell.source).body
                if parameters or isinstance(statement, (ast.Import, ast.ImportFrom))
            ]
    raise UsageError(f"the notebook has no cell that begins with `# EXERCISE {name}`")


def answer_text(notebook: NotebookNode, name: str) -> str:
    """The expression that the notebook hands to the check of an exercise: ``clip`` of ``check("clip", clip)``.

    Raises:
        UsageError: the notebook has no such call.
    """
    for cell in _code(notebook):
        for node in ast.walk(ast.parse(cell.source)):
            match node:
                case ast.Call(func=ast.Name(id="check"), args=[ast.Constant(value=asked), answer]) if asked == name:
                    return ast.unparse(answer)
    raise UsageError(f"the notebook has no `check({name!r}, ...)`")


def _generated(notebooks_dir: Path) -> dict[Path, bytes]:
    """The content of every notebook to generate."""
    sources = read_sources(notebooks_dir)
    if not sources:
        raise UsageError(f"no notebooks in {notebooks_dir / 'source'}: run this in a clone of the project")
    links, made = Links(sources, notebooks_dir), {}
    for name, source in sources.items():
        made[notebooks_dir / name] = links.put_into(edition(source, for_students=True), name)
        teachers = links.put_into(edition(source, for_students=False), name, up="../")
        made[notebooks_dir / INSTRUCTOR / name] = teachers
    return {path: f"{nbformat.writes(notebook)}\n".encode() for path, notebook in made.items()}


def _differs(path: Path, text: bytes) -> bool:
    return not path.exists() or path.read_bytes() != text


def _code(notebook: NotebookNode) -> Iterator[NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")
