"""Every exercise of the course: its solution is right, its stub is open, and what students get wrong is found wrong.

The wrong answers of notebook 02 are `WRONG` in `test_nb02.py`: by exercise, then by what is wrong with them; as `Wrong`
together with what is said. One that is meant to stop with an error has "(crash)" in its name. `RIGHT` are answers that
are as good as the solution.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from edp_lab.course.kit.exercises import exercises, mark
from edp_lab.course.solutions import exercise_cells, read_notebook
from tests.course.conftest import answer as answer_of
from tests.course.examples import Wrong

SOURCES = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb"))
EXERCISES = [(path.name[:2], name) for path in SOURCES for name in exercise_cells(read_notebook(path))]
STILL = {  # what code does that nobody has touched
    ("01", "total"): "still to do (it still says that many releases cost as much as one)",
    ("04", "bill"): "still to do (it still bills shuffled batches as a sample",
    ("05", "pool"): "still to do (the maximum still reads the zeros of the padding)",
    ("06", "report"): "still to do (it still picks by the test set and pays for the winner only)",
    ("09", "ranks"): "still to do (it still draws the same numbers on every rank and in every step)",
    ("10", "budget"): "still to do (the noise is still the same for one label and for a thousand)",
    ("11", "noise"): "still to do (the bug is still in",
}
SEEDS = range(5)
each_exercise = pytest.mark.parametrize(("number", "name"), EXERCISES, ids=lambda part: part)


def wrong_answers(number: str) -> dict[str, dict[str, Any]]:
    return import_module(f"tests.course.test_nb{number}").WRONG


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_notebook_has_two_or_three_exercises_and_checks_for_all(path: Path) -> None:
    notebook, number = read_notebook(path), path.name[:2]
    cells = exercise_cells(notebook)
    assert list(exercises(number)) == list(cells)
    assert len(cells) in (2, 3)
    assert sum(f'check = Checks("{number}", strict=STRICT, seed=seed)' in cell.source for cell in notebook.cells) == 1


@each_exercise
def test_the_solution_and_answers_as_good_are_right_whatever_the_seed(number: str, name: str) -> None:
    others = getattr(import_module(f"tests.course.test_nb{number}"), "RIGHT", {}).get(name, ())
    for right in (answer_of(number, name, "solution"), *others):
        verdicts = [mark(exercises(number)[name], right, seed) for seed in SEEDS]
        assert [verdict for verdict in verdicts if verdict.status != "solved"] == []


@each_exercise
def test_the_stub_is_open(number: str, name: str) -> None:
    verdict = mark(exercises(number)[name], answer_of(number, name, "stub"), 0)
    assert verdict.status == "open"
    assert STILL.get((number, name), "") in verdict.message


@each_exercise
def test_three_named_wrong_answers_are_wrong_in_words_whatever_the_seed(number: str, name: str) -> None:
    wrong = wrong_answers(number)[name]
    assert len(wrong) >= 3
    for what, answer in wrong.items():
        answer, says = answer if isinstance(answer, Wrong) else (answer, "")
        for seed in SEEDS:
            verdict = mark(exercises(number)[name], answer, seed)
            assert verdict.status == "wrong", what
            assert says in verdict.message
            stops = verdict.message.startswith(("your code stops", "the check cannot use"))
            assert stops == ("(crash)" in what), verdict.message
