"""Exercises, and checks that compare a student's answers with the library.

    check = Checks("02", strict=STRICT, seed=seed)
    check("clip", clip)                             # a function that the student wrote, or an answer
    check.score()

The exercises of notebook 02 are `edp_lab.course.nb02_dp_sgd.exercises.EXERCISES`. Their texts are in the
``room.toml`` in the same folder.
"""

from __future__ import annotations

import os
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import edp_lab
from edp_lab.errors import UsageError

STATUSES = ("solved", "wrong", "open")

Differences: TypeAlias = Iterable[str | None]


@dataclass(frozen=True)
class Exercise:
    """An exercise: its texts and its check.

    Attributes:
        name: an identifier that is unique in the notebook, such as "clip".
        title: the task, in a few words.
        check: generator function of an answer and a seeded generator. It compares the answer with the library on random
            cases, and yields None or a sentence about the difference; only the first sentence is used. An exception
            counts as a wrong answer, except NotImplementedError, which means that the exercise is unanswered.
        hint: one sentence, shown after a wrong answer.
        why: the point of the exercise in one or two sentences, shown after a right answer.
    """

    name: str
    title: str
    check: Callable[[Any, np.random.Generator], Differences]
    hint: str
    why: str


class Mark(NamedTuple):
    """Result of an exercise: its name, its status (one of `STATUSES`) and a message for the student."""

    exercise: str
    status: str
    message: str


class WrongAnswerError(Exception):
    """Raised for a wrong or missing answer if `strict` is set."""


def exercises(notebook: str) -> dict[str, Exercise]:
    """The exercises of a notebook ("02") by name, in order; UsageError if there is no such notebook."""
    rooms = [*Path(__file__).parents[1].glob(f"nb{notebook}_*/exercises.py")]
    if len(rooms) != 1:
        raise UsageError(f"there is no notebook {notebook!r}")
    listed = import_module(f"edp_lab.course.{rooms[0].parent.name}.exercises").EXERCISES
    return {exercise.name: exercise for exercise in listed}


def exercises_of(beside: str, **checks: Callable[..., Differences]) -> tuple[Exercise, ...]:
    """Create one exercise per check, in order, with texts from the ``room.toml`` in the file's folder.

    EXERCISES = exercises_of(__file__, clip=_clip, noise=_noise)
    """
    texts = tomllib.loads(Path(beside).with_name("room.toml").read_text(encoding="utf-8"))["exercises"]
    return tuple(Exercise(name, check=check, **texts[name]) for name, check in checks.items())


def mark(exercise: Exercise, answer: Any, seed: int) -> Mark:
    """Check an answer on random cases drawn with `seed`; an exception from the answer is part of the verdict."""
    if answer is None:
        return Mark(exercise.name, "open", _OPEN)
    cases = np.random.default_rng([seed, *exercise.name.encode()])
    try:
        differs = first_wrong(exercise.check(answer, cases))
    except NotImplementedError as nothing:
        return Mark(exercise.name, "open", f"{_OPEN} {nothing}".strip())
    except (Exception, SystemExit) as error:  # the student's code may raise anything
        differs = stopped(error)
    if differs is None:
        return Mark(exercise.name, "solved", exercise.why)
    return Mark(exercise.name, "wrong", f"{differs}\n   Hint: {exercise.hint}")


def stopped(error: BaseException) -> str:
    """Message for the student about an error: its type, its text and the last line of the student's code."""
    if isinstance(error.__cause__, StopIteration):  # Python turns it into a RuntimeError in a generator
        error = error.__cause__
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)]
    if isinstance(error, SyntaxError):
        return f"your code stops with {what}."
    if not lines:  # raised by the check or the library, which cannot use the value
        return f"the check cannot use your answer ({what})."
    last = lines[-1]
    where = "the cell" if last.name == "<module>" else last.name
    return f"your code stops with {what}, in line {last.lineno} of {where}: `{last.line}`."


class Checks:
    """The checks of one notebook.

    Args:
        notebook: the notebook's number, such as "02".
        strict: raise WrongAnswerError instead of continuing; for tests.
        seed: seed of the random cases on which answers are checked.

    Attributes:
        verdicts: the latest verdict on each exercise.
    """

    def __init__(self, notebook: str, *, strict: bool = False, seed: int = 0) -> None:
        self.notebook, self.strict, self.seed = notebook, strict, seed
        self._exercises = exercises(notebook)
        self.verdicts = {name: Mark(name, "open", "not tried yet") for name in self._exercises}

    def __call__(self, name: str, answer: Any) -> None:
        """Check an answer and print the verdict.

        Raises UsageError if the notebook has no such exercise, and WrongAnswerError if `strict` is set and the answer
        is wrong or missing.
        """
        if name not in self._exercises:
            raise UsageError(f"notebook {self.notebook} has no exercise {name!r}: it has {', '.join(self._exercises)}")
        exercise = self._exercises[name]
        verdict = self.verdicts[name] = mark(exercise, answer, self.seed)
        print(_LINES[verdict.status].format(title=exercise.title, message=verdict.message))
        if self.strict and verdict.status != "solved":
            raise WrongAnswerError(f"exercise {self.notebook}.{name}: {verdict.message}")

    def score(self) -> None:
        """Print a summary, such as "1 of 3 exercises solved; wrong: clip; open: noise"."""
        of = {
            status: [mark.exercise for mark in self.verdicts.values() if mark.status == status] for status in STATUSES
        }
        rest = "".join(f"; {status}: {', '.join(of[status])}" for status in STATUSES[1:] if of[status])
        print(f"{len(of['solved'])} of {len(self.verdicts)} exercises solved{rest}")


NOTHING = "(your function returns None: is there a `return`?)"
_OPEN = "still to do"
_LINES = {
    "solved": "✓ {title}: right. {message}",
    "wrong": "✗ {title}: not yet. {message}",
    "open": "○ {title}: {message}",
}
_NOT_THEIRS = (  # code in these files is not the student's
    str(Path(edp_lab.__file__).parent) + os.sep,
    *{sysconfig.get_path(part) for part in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen",
)


def close(
    got: Any,
    wanted: Any,
    what: str,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    slips: Mapping[str, Any] | None = None,
) -> str | None:
    """Return None if two arrays or numbers agree, otherwise a sentence about the first difference.

    `slips` maps sentences about known mistakes to their results; if `got` is one of these results, its sentence is
    returned. Raises NotImplementedError if `got` is None, because there is nothing to compare yet.
    """
    mine, theirs = np.asarray(given(got), dtype=float), np.asarray(wanted, dtype=float)
    wrong = mine.shape != theirs.shape or ~np.isclose(mine, theirs, rtol=rtol, atol=atol)
    if not np.any(wrong):
        return None
    for sentence, value in (slips or {}).items():
        if mine.shape == np.shape(value) and np.allclose(mine, value, rtol=1e-4, atol=1e-12):
            return sentence
    if mine.shape != theirs.shape:
        return f"{what}: yours has shape {mine.shape}; it should be {theirs.shape}."
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f" (first at {list(first)})" if first else ""
    return f"{what}{where}: yours is {mine[first]:.4g}; it should be {theirs[first]:.4g}."


def given(got: Any) -> Any:
    """Return the result of a student's function; NotImplementedError if it is None."""
    if got is None:
        raise NotImplementedError(NOTHING)
    return got


def first_wrong(differences: Iterable[str | None], untouched: bool = False, still: str = "") -> str | None:
    """Return the first sentence about a difference, or None.

    Raises NotImplementedError with the message `still` if the answer behaves like the stub (`untouched`).
    """
    if untouched:
        raise NotImplementedError(f"({still})")
    return next(filter(None, differences), None)


MOVES = ("rises", "falls", "stays")


def moved(before: float, after: float) -> str:
    """Return one of `MOVES`: "stays" if both values agree to a relative tolerance of 1e-6."""
    return "stays" if np.isclose(before, after, rtol=1e-6, atol=0) else "rises" if after > before else "falls"


def predicted(prediction: Any, measured: Mapping[str, tuple[float, float]], what: str) -> str | None:
    """Return None if every predicted move is right, otherwise a sentence about a wrong one, with the numbers.

    Args:
        prediction: the student's answers by question, each one of `MOVES`.
        measured: the values before and after the change, by question (see `moved`).
        what: the name of the value, such as "δ".

    Raises NotImplementedError if a question has no prediction yet.
    """
    right = {}
    for question, (before, after) in measured.items():
        correction = f"you said {{!r}}, but {what} is {before:.3g} before and {after:.3g} after"
        right[question] = moved(before, after), correction
    return chosen(prediction, right, MOVES, 'not "rises", "falls" or "stays"')


def chosen(
    prediction: Any, right: Mapping[str, tuple[str, str]], options: Collection[str], otherwise: str
) -> str | None:
    """Return None if every answer is the right option, otherwise a sentence about the first wrong answer.

    Args:
        right: by question, the right option and the reply to a wrong one, in which ``{}`` becomes the wrong option.
        otherwise: description of an answer that is not an option, such as "neither 'A' nor 'B'".

    Raises NotImplementedError if a question has no answer yet.
    """
    if not isinstance(prediction, Mapping) or prediction.keys() != right.keys():
        return f"a prediction must be a dictionary with the questions {', '.join(map(repr, right))}."
    if None in prediction.values():
        raise NotImplementedError
    for question, (option, correction) in right.items():
        if prediction[question] not in options:
            return f"{question}: {prediction[question]!r} is {otherwise}."
        if prediction[question] != option:
            return f"{question}: {correction.format(prediction[question])}."
    return None
