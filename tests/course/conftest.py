"""One JupyterLab with all notebooks, a Chromium for each module of browser tests, and the answers to all exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode

from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish.build import exercise_cells, read_source
from edp_lab.course.publish.exercise_cells import answer

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def browser() -> Iterator[browsing.Chrome]:
    """A headless Chromium, for one module only: what a page says late must not be laid at another's door."""
    if problem := browsing.missing():
        pytest.skip(problem)
    with browsing.chromium() as driver:
        yield driver


@pytest.fixture(scope="session")
def lab() -> Iterator[str]:
    """The address of a JupyterLab on copies of all notebooks."""
    with browsing.jupyterlab(NOTEBOOKS) as address:
        yield address


SOURCES = Path(__file__).parents[2] / "notebooks" / "source"


@cache
def source(number: str) -> NotebookNode:
    [path] = SOURCES.glob(f"{number}_*.ipynb")
    return read_source(path)


@pytest.fixture(scope="session")
def solution() -> Callable[[str, str], Any]:
    """From a notebook's number and an exercise's name, the right answer of the source notebook."""
    return lambda number, name: answer(source(number), name, exercise_cells(source(number))[name].solution)


@pytest.fixture(scope="session")
def stub() -> Callable[[str, str], Any]:
    """From a notebook's number and an exercise's name, what a student has not touched yet."""
    return lambda number, name: answer(source(number), name, exercise_cells(source(number))[name].stub)
