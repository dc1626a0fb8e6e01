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
gets its `Links`. The same sources give the same bytes. A source that is missing or not whole is refused by
`UsageError`, before anything is written.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

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
    """The exercise in a source notebook's code cell, None in an ordinary cell."""
    name, parts = exercise_name(source), _SOLUTION.split(source)
    if name is None:
        if len(parts) > 1:
            raise UsageError("a cell has a line `# SOLUTION`, but does not begin with `# EXERCISE name`")
        return None
    if len(parts) != 2 or not all(part.strip() for part in (parts[0].partition("\n")[2], parts[1])):
        raise UsageError(f"exercise {name!r} needs a stub, one line `# SOLUTION`, and a solution below it")
    return ExerciseCell(name, parts[0].rstrip(), f"# EXERCISE {name}\n{parts[1].strip()}")


def exercise_cells(notebook: NotebookNode) -> dict[str, ExerciseCell]:
    """The exercises of a source notebook by name, in their order."""
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
    """A source notebook."""
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
    """Write both versions of every source notebook under a folder; the paths that changed."""
    generated = _generated(notebooks_dir)
    (notebooks_dir / INSTRUCTOR).mkdir(exist_ok=True)
    changed = [path for path in generated if _differs(path, generated[path])]
    for path in changed:
        write_whole(path, generated[path])
    return changed


def drift(notebooks_dir: Path) -> list[str]:
    """What `build` would change, a sentence each; notebooks that no source gives are named too."""
    generated = _generated(notebooks_dir)
    present = sorted([*notebooks_dir.glob("*.ipynb"), *(notebooks_dir / INSTRUCTOR).glob("*.ipynb")])
    faults = {path: "differs from its source" for path, text in generated.items() if _differs(path, text)}
    faults |= {path: "has no source" for path in present if path not in generated}
    return [f"{path.relative_to(notebooks_dir).as_posix()} {fault}" for path, fault in faults.items()]


def context(notebook: NotebookNode, name: str) -> str:
    """Code for the names that an exercise's cell may use: what earlier cells import, and the ``parameters`` cell."""
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
    """The expression that the notebook hands to the check of an exercise: ``clip`` of ``check("clip", clip)``."""
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


# ---- Links -----------------------------------------------------------------------------------------------------------

# The tag of a notebook's first and last cell: pages and slides have a navigation of their own.
NAVIGATION = "navigation"
PAGES = ("glossary.md", "references.md")
_ROW = re.compile(r'^\| <a id="(.+?)"></a>\*\*(.+?)\*\*', re.MULTILINE)
_REFERENCE = re.compile(r"^(\* .+) \[([\d, ]+)\]$", re.MULTILINE)
# Rows of a table, and prose.
_NOTEBOOKS = r"^\| \**\d\d\** \| \**[A-Za-z].*$|\bnotebooks?(?:(?:,|\s+and|\s+or)?\s+\d\d)+"
_LEFT_ALONE = "|".join(
    [
        r"^(?:```|~~~)[\s\S]*?^(?:```|~~~)",
        r"^(?:#|\|).*$",  # headings and tables
        r"\$\$[\s\S]*?\$\$",
        r"\$[^$]*\$",
        r"`[^`]*`",
        r"\[[^\]]*\]\([^)]*\)",
        r"<[^>]*>",
        r"(?<![^\s(])\*(?=[^\s*])[^*]{30,}\*",  # a title or a quotation in italics
    ]
)


def title(notebook: NotebookNode, default: str) -> str:
    """The notebook's first heading, or ``default``."""
    return heading("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"), default)


def heading(text: str, default: str) -> str:
    """The first heading of a Markdown text, or `default`."""
    found = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else default


class Links:
    """The links of the notebooks of one folder, so that authors write none: to the notebook before and after, to other
    notebooks where the prose names them, to the glossary where a term occurs first, and to what to read next.

    A row of ``glossary.md`` is ``| <a id="slot"></a>**slot, slots** | ...``, where each of the bold terms leads to the
    row. A line of ``references.md`` is ``* Authors (year). ... [02, 07]``, where the numbers are those of the notebooks
    that it is further reading for.

    Args:
        notebooks: by file name, in course order.
        folder: has the `PAGES`; one that is missing is not linked to.
    """

    def __init__(self, notebooks: Mapping[str, NotebookNode], folder: Path) -> None:
        self._titles = {name: title(notebook, name).partition(":")[0] for name, notebook in notebooks.items()}
        self._files = {name[:2]: name for name in notebooks}
        self._pages = {name: (folder / name).read_text(encoding="utf-8") for name in PAGES if (folder / name).exists()}
        self._references = _REFERENCE.findall(self._pages.get("references.md", ""))
        self._anchors = {
            form: anchor
            for anchor, terms in _ROW.findall(self._pages.get("glossary.md", ""))
            for term in terms.lower().split(", ")
            if not re.fullmatch("[a-z]", term)  # formulas are full of them
            for form in (term, f"{term}s", re.sub("y$", "ies", term))
        }
        longest = sorted(self._anchors, key=len, reverse=True)
        terms = "|".join(re.escape(form).replace(r"\ ", r"\s+") for form in longest) or "(?!)"
        places = rf"(?P<notebooks>{_NOTEBOOKS})|{_LEFT_ALONE}|(?<![\w^-])(?P<term>{terms})(?![\w-])"
        self._places = re.compile(places, re.MULTILINE | re.IGNORECASE)

    def put_into(self, notebook: NotebookNode, name: str, up: str = "") -> NotebookNode:
        """A copy of a notebook with its links.

        Args:
            name: of its file.
            up: leads from its folder to that of the `PAGES`, as ``../``.
        """
        linked, seen = deepcopy(notebook), set[str]()
        for cell in linked.cells:
            if cell.cell_type == "markdown":
                cell.source = self._places.sub(lambda found: self._link(found, name, up, seen), cell.source)
        if reading := self._further_reading(name, up):
            linked.cells.append(new_markdown_cell(reading, id="further-reading"))
        if line := self._navigation(name, up):
            tags = {"tags": [NAVIGATION]}
            first, last = (new_markdown_cell(line, id=place, metadata=tags) for place in ("before", "after"))
            linked.cells = [first, *linked.cells, last]
        return linked

    def _link(self, found: re.Match[str], name: str, up: str, seen: set[str]) -> str:
        """What stands for a piece of prose: a link, or the piece itself. `seen` has the anchors that are linked to."""
        if found["notebooks"]:
            return re.sub(r"\b\d\d\b", lambda number: self._to_notebook(number[0], name), found[0])
        anchor = self._anchors[" ".join(found["term"].lower().split())] if found["term"] else ""
        if not anchor or anchor in seen:
            return found[0]
        seen.add(anchor)
        return f"[{found[0]}]({up}glossary.md#{anchor})"

    def _to_notebook(self, number: str, name: str) -> str:
        file = self._files.get(number, name)
        return number if file == name else f"[{number}]({file})"

    def _navigation(self, name: str, up: str) -> str:
        """The line above and below a notebook."""
        names = list(self._titles)
        place = names.index(name)
        parts = [f"[← {self._titles[before]}]({before})" for before in names[:place][-1:]]
        parts += [f"[start]({names[0]})"] if place else []
        parts += [f"[{page.removesuffix('.md')}]({up}{page})" for page in self._pages]
        parts += [f"[{self._titles[after]} →]({after})" for after in names[place + 1 :][:1]]
        return " | ".join(parts)

    def _further_reading(self, name: str, up: str) -> str:
        """The last part of a notebook, empty where nothing is named for it."""
        chosen = [text for text, numbers in self._references if name[:2] in numbers.split(", ")]
        lines = ["## Further reading", "", *chosen, "", f"All [references]({up}references.md)."]
        return "\n".join(lines) if chosen else ""
