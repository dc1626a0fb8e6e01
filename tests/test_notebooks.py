"""Every notebook of the course: stored clean, in short cells, and running through papermill without error."""

import os
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from edp_lab.course.publish.runner import NotebookRun, notebook_parameters, run_course

ROOT = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(ROOT.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
PARTS = ["Goal", "Predict", "Do", "Slide", "Check", "What this does *not* show", "Further reading"]
# Of 00, which begins with a secret.
FIRST = ["Goal", "Read", "Hide", "Predict", "Slide", "Test a claim", "A private model that works", *PARTS[4:]]
MAX_WORDS = 2500  # of prose, of all cells
MAX_LINES = 12  # of a code cell without its imports; the median at most half of it
MAX_SECONDS = 180  # three times its budget, two at a time on a machine with much else to do


def test_course_begins_with_00_start() -> None:
    assert [path.name for path in NOTEBOOKS][:1] == ["00_start.ipynb"]


@each_notebook
def test_notebook_keeps_the_order_and_length_of_the_course(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    parts = re.findall(r"^## (.*)", text, re.MULTILINE)
    if path.stem == "00_start":
        assert parts == FIRST
    else:  # a question may come before the goal, and sliders among what is done
        assert [*sorted(parts[:2]), *parts[2:]] == [part for part in PARTS if part != "Slide" or part in parts]
    assert sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown") <= MAX_WORDS
    code = [cell.source.splitlines() for cell in cells if cell.cell_type == "code"]
    lines = [sum(not line.startswith(("import ", "from ")) for line in cell) for cell in code]
    assert max(lines) <= MAX_LINES
    assert statistics.median(lines) <= MAX_LINES / 2


@each_notebook
def test_notebook_has_parameters(path: Path) -> None:
    assert notebook_parameters(path).get("mode") in ('"quick"', "'quick'")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NotebookRun]:
    """The instructor's versions, whose solutions must be right: STRICT lets no wrong one pass."""
    out, jobs = tmp_path_factory.mktemp("course"), min(2, len(os.sched_getaffinity(0)))
    course = run_course(ROOT, out, "quick", parameters={"STRICT": True}, jobs=jobs)
    return {run.path.name: run for run in course.runs}


@each_notebook
def test_notebook_runs_in_quick_mode_with_every_solution(
    path: Path, runs: dict[str, NotebookRun], record_property: Callable[[str, object], None]
) -> None:
    run = runs[path.name]
    record_property("seconds", round(run.seconds, 1))  # for the JUnit report
    assert run.error is None, run.error
    assert run.seconds < MAX_SECONDS
