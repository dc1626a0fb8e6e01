"""Exercises that check themselves: an answer is compared with the library, and what differs is said in words.

    check = Checks("02", strict=STRICT, seed=seed)
    check("clip", clip)       # a function that the student wrote, or a prediction
    check.score("score.json")

The exercises of notebook 02 are `edp_lab.check.nb02.EXERCISES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from edp_lab.errors import UsageError


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        name: unique in its notebook, such as "clip".
        title: what is to be done, in a few words.
        judge: from an answer and a seeded generator, None where the answer is right, else one sentence that says what
            differs. It compares with the library on cases it draws; what it raises counts as a wrong answer.
        hint: one sentence, shown with a wrong answer.
        why: one or two sentences, shown with a right one: what was to be learnt.
    """

    name: str
    title: str
    judge: Callable[[Any, np.random.Generator], str | None]
    hint: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """What became of one exercise: "solved", "wrong" or "open" (still the stub)."""

    exercise: str
    status: str
    message: str


class WrongAnswerError(Exception):
    """A wrong or missing answer where `strict` asks for right ones."""


def exercises(notebook: str) -> dict[str, Exercise]:
    """The exercises of a notebook ("02"), by name, in their order.

    Raises:
        UsageError: there is no such notebook.
    """
    try:
        found = import_module(f"edp_lab.check.nb{notebook}").EXERCISES
    except ModuleNotFoundError:
        raise UsageError(f"notebook {notebook!r} has no exercises") from None
    return {exercise.name: exercise for exercise in found}


class Checks:
    """The checks of one notebook.

    Args:
        notebook: its number, "02".
        strict: raise WrongAnswerError instead of going on; for tests and grading.
        seed: of the cases an answer is tried on; a seed per student gives each their own.

    Attributes:
        verdicts: by exercise, the last one.
    """

    def __init__(self, notebook: str, *, strict: bool = False, seed: int = 0) -> None:
        self.notebook, self.strict, self.seed = notebook, strict, seed
        self._exercises = exercises(notebook)
        self.verdicts = {name: Verdict(name, "open", "not tried yet") for name in self._exercises}

    def __call__(self, name: str, answer: Any) -> None:
        """Judge an answer and print the verdict.

        Raises:
            UsageError: the notebook has no such exercise.
            WrongAnswerError: the answer is wrong or missing, and `strict` is set.
        """
        if name not in self._exercises:
            raise UsageError(f"notebook {self.notebook} has no exercise {name!r}: it has {', '.join(self._exercises)}")
        exercise = self._exercises[name]
        verdict = self.verdicts[name] = self._judge(exercise, answer)
        print(_LINES[verdict.status].format(title=exercise.title, message=verdict.message))
        if self.strict and verdict.status != "solved":
            raise WrongAnswerError(f"exercise {self.notebook}.{name}: {verdict.message}")

    def _judge(self, exercise: Exercise, answer: Any) -> Verdict:
        cases = np.random.default_rng([self.seed, *exercise.name.encode()])
        try:
            differs = exercise.judge(answer, cases) if answer is not None else _OPEN
        except NotImplementedError:
            differs = _OPEN
        except Exception as error:  # whatever the student's code does
            differs = f"your code stops with {type(error).__name__}: {error}"
        if differs is None:
            return Verdict(exercise.name, "solved", exercise.why)
        if differs == _OPEN:
            return Verdict(exercise.name, "open", _OPEN)
        return Verdict(exercise.name, "wrong", f"{differs}\n   Hint: {exercise.hint}")

    def score(self, path: str | Path | None = None) -> dict[str, Any]:
        """How many are solved; printed, and written as JSON where a path is given."""
        solved = sum(verdict.status == "solved" for verdict in self.verdicts.values())
        score = {
            "notebook": self.notebook,
            "seed": self.seed,
            "solved": solved,
            "exercises": len(self.verdicts),
            "verdicts": [asdict(verdict) for verdict in self.verdicts.values()],
        }
        print(f"{solved} of {len(self.verdicts)} exercises solved")
        if path is not None:
            from edp_lab.models.files import write_whole

            write_whole(Path(path), json.dumps(score, indent=1).encode())
        return score


_OPEN = "still to do"
_LINES = {
    "solved": "✓ {title}: right. {message}",
    "wrong": "✗ {title}: not yet. {message}",
    "open": "○ {title}: {message}",
}


def close(got: Any, wanted: Any, what: str, *, rtol: float = 1e-6, atol: float = 1e-9) -> str | None:
    """None where two arrays or numbers agree; else a sentence that says where they first differ."""
    if got is None:
        raise NotImplementedError
    mine, theirs = np.asarray(got, dtype=float), np.asarray(wanted, dtype=float)
    if mine.shape != theirs.shape:
        return f"{what}: yours has shape {mine.shape}, it should be {theirs.shape}."
    wrong = ~np.isclose(mine, theirs, rtol=rtol, atol=atol)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f" (first at {list(first)})" if first else ""
    return f"{what}{where}: yours is {mine[first]:.4g}, it should be {theirs[first]:.4g}."
