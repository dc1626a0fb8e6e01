"""An exercise outside its notebook: the text of its cell, run after the imports and parameters of the cells before it.

This is how submissions are graded and how the exercises are tested; no panel is built and no model trained.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from typing import Any

from nbformat import NotebookNode

from edp_lab.course.publish.build import exercise_name
from edp_lab.errors import UsageError


def context(notebook: NotebookNode, name: str) -> dict[str, Any]:
    """The names that an exercise's cell may use: what earlier cells import, and the ``parameters`` cell.

    Raises:
        UsageError: the notebook has no such exercise.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in _code(notebook):
        if exercise_name(cell.source) == name:
            return space
        if exercise_name(cell.source) is None:
            exec(compile(_setup(cell), "<notebook>", "exec"), space)
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


def answer(notebook: NotebookNode, name: str, text: str, space: dict[str, Any] | None = None) -> Any:
    """What the check of an exercise gets where its cell has this text.

    Args:
        notebook: the source notebook.
        name: of the exercise.
        text: of its cell: the stub, the solution, or a student's.
        space: the names that the text may use; `context` if None. The text adds its own.
    """
    space = context(notebook, name) if space is None else space
    file = f"<exercise {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # so that an error can quote a line
    exec(compile(text, file, "exec"), space)
    return eval(answer_text(notebook, name), space)


def _code(notebook: NotebookNode) -> Iterator[NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def _setup(cell: NotebookNode) -> ast.Module:
    """The imports of a cell; all of it if it holds the parameters."""
    tree = ast.parse(cell.source)
    if "parameters" not in cell.metadata.get("tags", ()):
        tree.body = [statement for statement in tree.body if isinstance(statement, (ast.Import, ast.ImportFrom))]
    return tree
