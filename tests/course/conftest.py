"""One JupyterLab with all notebooks, a Chromium for each module of browser tests, and the answers to all exercises."""

from __future__ import annotations

import ast
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
from nbformat.v4 import new_notebook
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.course.kit.panel import Panel
from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish.build import answer_text, context, exercise_cells, read_source
from edp_lab.course.publish.submission import evaluate

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def invoked(*words: object) -> Result:
    """``edp-lab WORDS``, in this process."""
    return CliRunner().invoke(app, [*map(str, words)])


def store(path: Path, *cells: NotebookNode, kernel: str = "python3") -> Path:
    """A notebook of these cells, which this kernel can run."""
    about = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    nbformat.write(new_notebook(cells=[*cells], metadata=about), path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[browsing.Chrome]:
    """A headless Chromium, for one module only: what a page says late must not be laid at another's door."""
    if problem := browsing.missing():
        pytest.skip(problem)
    with browsing.chromium() as driver:
        yield driver


def console_errors(driver: browsing.Chrome) -> list[str]:
    """What the page has put on the console as an error since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def asked_elsewhere(driver: browsing.Chrome) -> list[str]:
    """Addresses outside this machine that the page has tried to load; those that it could not are also
    `console_errors`, because no name of another machine is resolved."""
    names = driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    return [a for a in names if a.startswith("http") and urlsplit(a).hostname not in ("127.0.0.1", "localhost")]


@pytest.fixture(scope="session")
def lab() -> Iterator[str]:
    """The address of a JupyterLab on copies of all notebooks."""
    with browsing.jupyterlab(NOTEBOOKS) as address:
        yield address


SOURCES = ROOT / "notebooks" / "source"


@cache
def source(number: str) -> NotebookNode:
    [path] = SOURCES.glob(f"{number}_*.ipynb")
    return read_source(path)


def answer(number: str, name: str, version: str) -> Any:
    """What the check of an exercise gets where its cell is the "stub" or the "solution"."""
    notebook, space = source(number), {"__name__": "__main__"}
    exec(compile(context(notebook, name), "<notebook>", "exec"), space)
    text = getattr(exercise_cells(notebook)[name], version)
    return evaluate(name, text, answer_text(notebook, name), space)


def prediction(number: str, name: str, *words: Any) -> dict[str, Any]:
    """These words for the questions of an exercise's stub, in their order."""
    return dict(zip(answer(number, name, "stub"), words, strict=True))


def prose(number: str) -> str:
    """The text cells of a notebook."""
    return "\n".join(cell.source for cell in source(number).cells if cell.cell_type == "markdown")


@pytest.fixture
def run_notebook() -> Callable[..., dict[str, Any]]:
    """From a notebook's number and parameters: what its code cells leave behind, run here and in strict mode.

    All its parameters but ``mode`` are to be given, so that a new one is not forgotten. The cells are run until one
    fails, and must solve all exercises; at last a fault is put into the first panel, which must make the last cell with
    ``.check()`` fail.
    """

    def run(number: str, **values: Any) -> dict[str, Any]:
        cells = [cell for cell in source(number).cells if cell.cell_type == "code"]
        space: dict[str, Any] = {}
        for cell in cells:
            exec(cell.source, space)
            if "parameters" in cell.metadata.get("tags", ()):
                assigned = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
                assert assigned - {"mode", "STRICT"} == set(values)
                space.update(values, STRICT=True)
        panel = next(value for value in space.values() if isinstance(value, Panel))
        whole, panel.draws[0] = panel.draws[0], lambda result: 1 / 0  # a fault that only a moved slider meets
        panel.reset()
        [last] = [cell for cell in cells if ".check()" in cell.source]
        with pytest.raises(ZeroDivisionError):
            exec(last.source, space)
        panel.draws[0] = whole  # pages show all panels that there are
        solved = {name: verdict.status for name, verdict in space["check"].verdicts.items()}
        assert solved == dict.fromkeys(exercise_cells(source(number)), "solved")
        return space

    return run


@pytest.fixture
def given_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], tuple[Any, ...]]:
    """From a function of `edp_lab` and a call of `edp-lab`, what the function is given there; it does nothing."""

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
    """From a call of `edp-lab train`, the configuration that it would train."""
    return lambda line: given_to("training.train", line)[0]
