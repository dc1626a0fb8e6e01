"""What students get wrong in notebook 11; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edp_lab.course.kit.exercises import exercises, mark

QUESTIONS = (
    "P2: noise claimed over noise found, with four times as many GPUs",
    "P22: claimed ε, with four times as many GPUs",
    "P5: true ε, two utterances in a micro-batch instead of one",
    "P5: true ε, four times as many utterances in a micro-batch",
)
Changes = list[tuple[float, float]]


def by_hits(hits: list[bool]) -> str:
    return "holds" if all(hits) else "holds under conditions" if any(hits) else "does not hold"


def any_fall(changes: Changes) -> str:
    return by_hits([mean < 0 for mean, _ in changes])


def whatever_the_sign(changes: Changes) -> str:
    return by_hits([abs(mean) > half for mean, half in changes])


def the_lower_end(changes: Changes) -> str:
    return by_hits([mean - half < 0 for mean, half in changes])


def never_partly(changes: Changes) -> str:
    return "holds" if all(mean + half < 0 for mean, half in changes) else "does not hold"


def guess(*words: str) -> dict[str, str]:
    return dict(zip(QUESTIONS, words, strict=True))


WRONG: dict[str, dict[str, Any]] = {
    "verdict": {
        "takes every fall for one beyond chance": any_fall,
        "takes a rise beyond chance for a fall": whatever_the_sign,
        "looks at the wrong end of the interval": the_lower_end,
        "forgets that some may": never_partly,
        "answers true or false": lambda changes: all(mean + half < 0 for mean, half in changes),
        "takes a pair for a number (crash)": lambda changes: by_hits([change < 0 for change in changes]),
    },
    "noise": {
        "divides by N once more": lambda n, c, z: c * z / n**2,
        "forgets the mean": lambda n, c, z: c * z / math.sqrt(n),
        "takes variances for deviations": lambda n, c, z: (c * z / n) ** 2 / n,
        "leaves out the clip norm": lambda n, c, z: z / n**1.5,
    },
    "predict": {
        "the claim sees the GPUs": guess("rises", "rises", "rises", "stays"),
        "larger micro-batches go on costing": guess("rises", "stays", "rises", "rises"),
        "averages out": guess("falls", "stays", "stays", "stays"),
        "a word that is none": guess("rises", "same", "rises", "stays"),
    },
}


def test_a_bug_that_is_still_in_is_open_and_so_is_a_question_without_a_word() -> None:
    untouched = mark(exercises("11")["noise"], lambda n, c, z: c * z / n, 0)
    assert untouched.status == "open"
    assert "the bug is still in" in untouched.message
    assert mark(exercises("11")["predict"], dict.fromkeys(QUESTIONS), 0).status == "open"


@pytest.mark.parametrize("name", ["verdict", "noise"])
def test_a_function_that_returns_nothing_is_open(name: str) -> None:
    answer = (lambda changes: None) if name == "verdict" else lambda n, c, z: None
    assert mark(exercises("11")[name], answer, 0).status == "open"


def test_what_differs_is_said_with_the_case() -> None:
    wrong = mark(exercises("11")["verdict"], the_lower_end, 3)
    assert "yours is 'holds', it should be 'holds under conditions'" in wrong.message
    assert "±" in wrong.message
    noise = mark(exercises("11")["noise"], lambda n, c, z: c * z / math.sqrt(n), 0)
    assert "with N = " in noise.message
