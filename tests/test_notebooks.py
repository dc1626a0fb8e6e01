"""Every notebook of the course: stored without outputs, in short cells, and executed by papermill without errors."""

import ast
import json
import os
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from edp_lab.course.run import run_course
from tests.course.examples import all_panels

ROOT = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(ROOT.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
END = ["Next", "What this does *not* show", "Further reading"]
MAX_WORDS = 1600  # in prose and panels, including folds of cells
MAX_STRETCH = 150  # words between two code cells, without folds
MAX_BEFORE = 250  # words before the first panel
MAX_LINES = 12  # of a code cell without imports; the median is at most half of it
MAX_SECONDS = 180  # three times the budget, two at a time on a busy machine


@each_notebook
def test_notebook_keeps_the_cut_of_the_course(path: Path) -> None:
    cells = [
        cell for cell in nbformat.read(path, as_version=4).cells if "navigation" not in cell.metadata.get("tags", ())
    ]
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    parts = re.findall(r"^## (.*)", prose, re.MULTILINE)
    assert (parts[0], parts[-3:]) == ("Goal", END)
    assert not {"Predict", "Do", "Slide", "Check"} & set(parts)
    code = [cell.source.splitlines() for cell in cells if cell.cell_type == "code"]
    lines = [sum(not line.startswith(("import ", "from ")) for line in cell) for cell in code]
    assert max(lines) <= MAX_LINES
    assert statistics.median(lines) <= MAX_LINES / 2


@each_notebook
def test_a_slider_stands_beside_its_idea(path: Path) -> None:
    cells = [
        cell for cell in nbformat.read(path, as_version=4).cells if "navigation" not in cell.metadata.get("tags", ())
    ]
    panels = {name.split()[1] for name in all_panels()}
    before, stretch, moved = 0, 0, path.stem == "11_claims"  # which has no panel
    for cell in cells:
        if re.search(r"^## Next", cell.source, re.MULTILINE):
            break
        if cell.cell_type == "code":
            moved |= bool(panels & set(re.findall(r"(\w+)\(", cell.source)))
            stretch = 0
            continue
        words = len(re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL).split())
        before, stretch = before + (0 if moved else words), stretch + words
        assert stretch <= MAX_STRETCH, cell.source[:80]
    assert moved
    assert before <= MAX_BEFORE


def test_at_most_thirty_panels() -> None:
    assert len(all_panels()) <= 30


@each_notebook
def test_every_parameter_is_used_and_the_last_cell_checks_every_panel(path: Path) -> None:
    """Only `Frame.check` reports an error of a slider's callback."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    [parameters] = [ast.parse(cell.source) for cell in cells if "parameters" in cell.metadata.get("tags", ())]
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    given = {node.id for node in ast.walk(parameters) if isinstance(node, ast.Name)}
    assert {"mode", "STRICT"} <= given
    assert given - used <= {"mode"}
    calls = ["panels." + name.split()[1] for name in all_panels()] + ["Private"]
    made = {
        ast.unparse(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in calls
    }
    [last] = [cell.source for cell in cells if ".check()" in cell.source] or [""]
    assert made <= {node.id for node in ast.walk(ast.parse(last)) if isinstance(node, ast.Name)}
    assert made or path.stem == "11_claims"  # which has no panel


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All notebooks, executed with their solutions; STRICT requires every solution to be right."""
    out, jobs = tmp_path_factory.mktemp("course"), min(2, len(os.sched_getaffinity(0)))
    rows = run_course(ROOT, out, {"mode": "quick", "STRICT": True}, jobs=jobs)
    return {row["notebook"]: row | {"executed": out / f"{row['notebook']}.ipynb"} for row in rows}


@each_notebook
def test_notebook_runs_in_quick_mode_with_every_solution(
    path: Path, runs: dict[str, dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    row = runs[path.stem]
    record_property("seconds", row["seconds"])  # for the JUnit report
    assert row["error"] is None
    assert row["seconds"] < MAX_SECONDS


@each_notebook
def test_prose_and_panels_have_few_words(path: Path, runs: dict[str, dict[str, Any]]) -> None:
    cells = nbformat.read(runs[path.stem]["executed"], as_version=4).cells
    prose = [
        cell.source
        for cell in cells
        if cell.cell_type == "markdown" and "navigation" not in cell.metadata.get("tags", ())
    ]
    outputs = [output.get("data", {}).get("text/html", "") for cell in cells for output in cell.get("outputs", ())]
    drawn = re.findall(r'"edp-still"><script[^>]*>(.*?)</script>', "".join(outputs))
    panels = [text for widget in drawn for text in seen_at_first(json.loads(widget))]
    assert any(panels) or path.stem == "11_claims"  # which has no panel
    assert sum(len(text.split()) for text in [*prose, *panels]) <= MAX_WORDS


def seen_at_first(widget: dict[str, Any]) -> Iterator[str]:
    """A panel's text before anything is unfolded: heading, names of controls, and the sentence below the tiles."""
    state = widget.get("state", {})
    if "edp-heading" in widget.get("classes", ()):
        yield re.sub("<.*?>", " ", widget["html"])
    yield state.get("sentence", "")
    if "entered" in state:
        yield state["label"]
    for child in widget.get("children", ()):
        yield from seen_at_first(child)
