"""Fixtures: a JupyterLab with all notebooks, a Chromium for each module of browser tests, answers to all exercises."""

from __future__ import annotations

import ast
import linecache
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import pytest
from click.testing import Result
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from typer.testing import CliRunner

from edp_lab.__main__ import app
from edp_lab.course.run import own_copy, read_notebook, read_solutions, solved
from tests import browser as browsing

ROOT = Path(__file__).parents[2]
HOSTILE = [  # cells: see `tests.course.hostile`
    'mode = "quick"',
    "from tests.course.hostile import *\nfrom edp_lab.course.kit.theme import activate\nactivate()",
    "panel = show()\npanel",
    "panel.set(a=2.0)\nprint(EVIL)\nfig.go.Figure(draw(None))",
    "html_table([[EVIL], [TEX]])",
    "EVIL",
    "raise ValueError(EVIL)",
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def invoked(*words: object) -> Result:
    """Run ``edp-lab WORDS`` in this process."""
    return CliRunner().invoke(app, [*map(str, words)])


def store(path: Path, *cells: NotebookNode, kernel: str = "python3") -> Path:
    """Write a notebook with these cells, which this kernel can execute."""
    about = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    nbformat.write(new_notebook(cells=[*cells], metadata=about), path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[browsing.Chrome]:
    """A headless Chromium for one module only, because late messages must not be attributed to another module."""
    if problem := browsing.missing():
        pytest.skip(problem)
    with browsing.chromium() as driver:
        yield driver


def console_errors(driver: browsing.Chrome) -> list[str]:
    """Errors that the page has written to the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def asked_elsewhere(driver: browsing.Chrome) -> list[str]:
    """Addresses outside this machine that the page has tried to load. Failed requests are also in `console_errors`,
    because the names of other machines are not resolved."""
    names = driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    return [a for a in names if a.startswith("http") and urlsplit(a).hostname not in ("127.0.0.1", "localhost")]


def store_hostile(folder: Path) -> None:
    """Write a notebook that shows hostile text in every possible place."""
    first, *others = map(new_code_cell, HOSTILE)
    first.metadata["tags"] = ["parameters"]
    store(folder / "00_hostile.ipynb", first, *others)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab with copies of all notebooks; two of them are set to train for only one epoch."""
    folder = tmp_path_factory.mktemp("notebooks")
    own_copy(ROOT / "notebooks", folder)
    for number in ("07", "05"):
        [path] = folder.glob(f"{number}_*.ipynb")
        quick = re.sub(r'"epochs = \d+', '"epochs = 1', path.read_text(encoding="utf-8"))
        path.write_text(quick, encoding="utf-8")
    store_hostile(folder)
    with browsing.jupyterlab(folder) as address:
        yield address


def path_of(number: str) -> Path:
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return path


@cache
def source(number: str) -> NotebookNode:
    """The notebook with its exercises solved."""
    return solved(read_notebook(path_of(number)), path_of(number))


def answer(number: str, name: str, version: str) -> Any:
    """The answer passed to an exercise's check if its cell is the "stub" or the "solution"."""
    notebook, space, checked = read_notebook(path_of(number)), {"__name__": "__main__"}, None
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    place = next(k for k, cell in enumerate(cells) if cell.source.startswith(f"# EXERCISE {name}\n"))
    before = [cell for cell in source(number).cells if cell.cell_type == "code"][:place]
    for cell in before:  # an answer may use only imports, parameters and functions of earlier solutions
        tags = cell.metadata.get("tags", ())
        kinds = ast.FunctionDef if "exercise" in tags else ast.Import | ast.ImportFrom
        wanted = [node for node in ast.parse(cell.source).body if "parameters" in tags or isinstance(node, kinds)]
        exec(compile(ast.Module(wanted, []), "<notebook>", "exec"), space)
    for cell in cells:
        for node in ast.walk(ast.parse(cell.source)):
            match node:
                case ast.Call(func=ast.Name(id="check"), args=[ast.Constant(value=asked), found]) if asked == name:
                    checked = found
    assert checked is not None, f"notebook {number} has no check of {name!r}"
    text, file = cells[place].source if version == "stub" else read_solutions(path_of(number))[name], f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # lets an error quote a line
    exec(compile(text, file, "exec"), space)
    return eval(ast.unparse(checked), space)


def prediction(number: str, name: str, *words: Any) -> dict[str, Any]:
    """These words as answers to the questions of an exercise's stub, in order."""
    return dict(zip(answer(number, name, "stub"), words, strict=True))


def prose(number: str) -> str:
    """The text cells of a notebook."""
    return "\n".join(cell.source for cell in source(number).cells if cell.cell_type == "markdown")


@pytest.fixture
def given_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], tuple[Any, ...]]:
    """The arguments that a call of `edp-lab` passes to a function of `edp_lab`, which is replaced by a stub."""

    class CallError(Exception):
        pass

    def call(function: str, line: str) -> tuple[Any, ...]:
        def refuse(*given: Any, **_: Any) -> None:
            raise CallError(*given)

        monkeypatch.setattr(f"edp_lab.{function}", refuse)
        result = invoked(*shlex.split(line)[1:])
        assert isinstance(result.exception, CallError), result.output
        return result.exception.args

    return call


@pytest.fixture
def trained(given_to: Callable[[str, str], tuple[Any, ...]]) -> Callable[[str], Any]:
    """The training configuration of a call of `edp-lab train`."""
    return lambda line: given_to("training.session.train", line)[0]
