"""The exercises of the course, out of their notebooks: `solution("02", "clip")` is what the teacher's cell hands to the
check, `stub("02", "clip")` what the untouched cell of the student hands over."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode

from edp_lab.check.context import answer
from edp_lab.course.build import exercise_cells, read_source

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
