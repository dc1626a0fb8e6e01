"""Every exercise of the course: its solution is right, its stub is open, and common mistakes are recognised.

`WRONG` in `test_nb02.py` contains wrong answers to notebook 02, by exercise and mistake; a `Wrong` also has a part of
the message. A mistake whose name contains "(crash)" stops with an error. `RIGHT` has further right answers.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import edp_lab.course.kit.exercises as check_module
from edp_lab.course.kit.exercises import (
    Checks,
    Exercise,
    Mark,
    WrongAnswerError,
    close,
    exercises,
    first_wrong,
    mark,
    predicted,
)
from edp_lab.course.run import exercise_cells, read_notebook
from edp_lab.errors import UsageError
from tests.course.conftest import answer as answer_of
from tests.course.examples import Wrong

SOURCES = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb"))
EXERCISES = [(path.name[:2], name) for path in SOURCES for name in exercise_cells(read_notebook(path))]
STILL = {  # results of unchanged stubs
    ("01", "total"): "still to do (it still says that many releases cost as little as one)",
    ("03", "bill"): "still to do (it still bills shuffled batches as a sample",
    ("08", "pool"): "still to do (the maximum still includes the zeros of the padding)",
    ("07", "report"): "still to do (it still chooses by the test set, and counts only the μ of the best run)",
    ("09", "ranks"): "still to do (it still draws the same numbers on every rank and in every step)",
    ("10", "budget"): "still to do (the noise is still the same for a thousand labels as for one)",
    ("11", "noise"): "still to do (the bug is still there",
}
SEEDS = range(2)
each_exercise = pytest.mark.parametrize(("number", "name"), EXERCISES, ids=lambda part: part)


def wrong_answers(number: str) -> dict[str, dict[str, Any]]:
    return import_module(f"tests.course.test_nb{number}").WRONG


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_notebook_has_two_to_four_exercises_and_checks_for_all(path: Path) -> None:
    notebook, number = read_notebook(path), path.name[:2]
    cells = exercise_cells(notebook)
    assert list(exercises(number)) == list(cells)
    assert len(cells) in (2, 3, 4)
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


# ---- Checks: right, wrong and open answers, and what a student reads about each --------------------------------------


JUDGE = """
def twice(answer, cases):
    x = float(cases.uniform(1, 2))
    yield close(answer(x), 2 * x, f"twice {x:.3f}")
"""
space: dict[str, Any] = {"close": close}
exec(
    compile(JUDGE, str(Path(check_module.__file__).with_name("nb99.py")), "exec"), space
)  # checks are part of the package

DOUBLE = Exercise("double", "Double it", space["twice"], "add it to itself.", "Twice is x + x.")
SIGN = Exercise("sign", "The sign", lambda answer, _: [None if answer == "+" else "it is not that."], "look.", "Plus.")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """The checks of an invented notebook 99 with two exercises."""
    found = {exercise.name: exercise for exercise in (DOUBLE, SIGN)}
    real = check_module.exercises
    monkeypatch.setattr(check_module, "exercises", lambda notebook: found if notebook == "99" else real(notebook))
    return Checks("99", seed=3)


def test_each_verdict_is_printed_and_the_score_says_what_is_left(
    check: Checks, capsys: pytest.CaptureFixture[str]
) -> None:
    check("double", lambda x: 2 * x)
    check("sign", "-")
    check("sign", None)
    assert capsys.readouterr().out.splitlines() == [
        "✓ Double it: right. Twice is x + x.",
        "✗ The sign: not yet. it is not that.",
        "   Hint: look.",
        "○ The sign: still to do",
    ]
    check("double", None)
    check("sign", "-")
    check.score()
    assert capsys.readouterr().out.endswith("0 of 2 exercises solved; wrong: sign; open: double\n")
    check("sign", "+")
    check.score()
    assert capsys.readouterr().out.endswith("1 of 2 exercises solved; open: double\n")


def test_strict_raises_for_wrong_and_for_missing_answers_only(check: Checks) -> None:
    strict = Checks("99", strict=True)
    strict("sign", "+")
    for name, answer, says in (("sign", "-", r"exercise 99\.sign: it is not that"), ("double", None, "still to do")):
        with pytest.raises(WrongAnswerError, match=says):
            strict(name, answer)


def test_cases_depend_on_the_seed_and_on_the_exercise_and_repeat() -> None:
    wrong = [mark(DOUBLE, lambda x: x, seed).message for seed in (0, 0, 1)]
    assert wrong[0] == wrong[1] != wrong[2]


def test_unknown_notebooks_and_exercises_are_refused_and_a_broken_one_is_not_called_unknown(
    check: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="there is no notebook '98'"):
        Checks("98")
    with pytest.raises(UsageError, match="no exercise 'triple': it has double, sign"):
        check("triple", 3)

    def broken(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'scipyy'", name="scipyy")

    monkeypatch.setattr("edp_lab.course.kit.exercises.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="scipyy"):
        exercises("04")


# ---- Errors in the student's code ----------------------------------------------------------------------------------


def test_an_error_is_told_with_the_students_own_line_however_deep_it_is_raised() -> None:
    def double(x: float) -> Any:
        share = x / 0
        return share

    def joined(x: float) -> Any:
        return np.concatenate([np.ones((2, 2)), np.ones(3)])

    verdict = mark(DOUBLE, double, 0)
    assert verdict.status == "wrong"
    assert verdict.message.startswith("your code stops with ZeroDivisionError: float division by zero, in line ")
    assert " of double: `share = x / 0`." in verdict.message

    def ended(x: float) -> Any:
        return next(iter(()))

    assert "of joined: `return np.concatenate([np.ones((2, 2)), np.ones(3)])`." in mark(DOUBLE, joined, 0).message
    assert "StopIteration, in line" in mark(DOUBLE, ended, 0).message


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x, y: x, "missing 1 required positional argument: 'y'"),
        (lambda x: "two", "could not convert string to float"),
        (3, "'int' object is not callable"),
    ],
)
def test_an_answer_that_the_check_cannot_use_is_not_called_an_error_of_a_line(answer: Any, says: str) -> None:
    message = mark(DOUBLE, answer, 0).message
    assert message.startswith("the check cannot use your answer (")
    assert says in message


def test_neither_exit_nor_a_missing_return_stops_the_notebook_but_a_student_can() -> None:
    def interrupted(x: float) -> float:
        raise KeyboardInterrupt

    assert mark(DOUBLE, lambda x: sys.exit(2), 0).message.startswith("your code stops with SystemExit: 2")
    silent = mark(DOUBLE, lambda x: None, 0)
    assert silent == Mark("double", "open", "still to do (your function returns None: is there a `return`?)")
    with pytest.raises(KeyboardInterrupt):
        mark(DOUBLE, interrupted, 0)


# ---- Comparing -----------------------------------------------------------------------------------------------------


def test_close_says_where_and_by_how_much() -> None:
    assert close([1.0, 2.0], np.array([1.0, 2.0 + 1e-9]), "x") is None
    assert close(np.inf, np.inf, "x") is None
    assert close([[1, 2], [3, 5]], [[1, 2], [3, 4]], "x") == "x (first at [1, 1]): yours is 5; it should be 4."
    assert close(2, 3, "x") == "x: yours is 2; it should be 3."
    assert close(np.nan, 3, "x") == "x: yours is nan; it should be 3."
    assert close([1, 2], 3, "x") == "x: yours has shape (2,); it should be ()."


MEASURED = {"more noise": (2.0, 1.0), "more people": (2.0, 2.0)}


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        ({"more noise": "falls", "more people": "stays"}, None),
        ({"more noise": "rises", "more people": "stays"}, "you said 'rises', but ε is 2 before and 1 after."),
        ({"more noise": "falls", "more people": "drops"}, "more people: 'drops' is not \"rises\""),
        ({"more noise": "falls"}, "a prediction must be a dictionary with the questions 'more noise', 'more people'"),
        ("falls", "a prediction must be a dictionary"),
    ],
)
def test_a_prediction_is_answered_with_the_numbers(prediction: Any, says: str | None) -> None:
    found = predicted(prediction, MEASURED, "ε")
    assert found is None if says is None else says in (found or "")


def test_a_prediction_with_a_gap_and_what_is_untouched_are_still_open() -> None:
    with pytest.raises(NotImplementedError):
        predicted({"more noise": "rises", "more people": None}, MEASURED, "ε")
    with pytest.raises(NotImplementedError, match="it is still there"):
        first_wrong(["differs"], True, "it is still there")
    assert first_wrong([None, "first", "second"]) == "first"
    assert first_wrong([None]) is None


def test_a_known_slip_is_named_instead() -> None:
    assert close(4, 2, "x", slips={"that is the square.": 4.0}) == "that is the square."
    assert close([4], 2, "x", slips={"that is a list.": [4]}) == "that is a list."
    assert close(2, 2, "x", slips={"never said.": 2}) is None
