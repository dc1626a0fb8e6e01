"""What students get wrong in notebook 01; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edp_lab.course.kit.exercises import exercises, mark


def share_of_yes(responses: Any, epsilon: float) -> Any:
    return np.mean(responses)


def half_corrected(responses: Any, epsilon: float) -> Any:
    return np.mean(responses) - 1 / (math.exp(epsilon) + 1)


def fair_coins(responses: Any, epsilon: float) -> Any:
    return (np.mean(responses) - 1 / 4) / (1 / 2)


def within_bounds(responses: Any, epsilon: float) -> Any:
    truth = math.exp(epsilon) / (math.exp(epsilon) + 1)
    return np.clip((np.mean(responses) - (1 - truth)) / (2 * truth - 1), 0, 1)


def advanced(epsilon: float, releases: int, delta: float) -> float:
    return epsilon * math.sqrt(2 * releases * math.log(1 / delta)) + releases * epsilon * (math.exp(epsilon) - 1)


def guess(sigma: str, both: str, people: str, epsilon: str) -> dict[str, str]:
    questions = ("σ doubles", "Δ and σ both double", "twice as many people", "ε is halved")
    return dict(zip(questions, (sigma, both, people, epsilon), strict=True))


WRONG: dict[str, dict[str, Any]] = {
    "estimate": {
        "takes responses for truth": share_of_yes,
        "takes the lies off, but does not rescale": half_corrected,
        "has two fair coins, whatever epsilon": fair_coins,
        "mends a negative estimate, which biases it": within_bounds,
        "confuses its arguments (crash)": lambda epsilon, responses: np.sum(responses) / len(responses),
    },
    "delta": {
        "a crowd hides more": guess("falls", "stays", "falls", "rises"),
        "sensitivity weighs more than noise": guess("falls", "rises", "stays", "rises"),
        "a smaller epsilon is all gain": guess("falls", "stays", "stays", "falls"),
        "in words of one's own": guess("shrinks", "stays", "stays", "rises"),
        "one word for four questions": "stays",
    },
    "total": {
        "the plain sum only": lambda epsilon, releases, delta: epsilon * releases,
        "advanced composition always": advanced,
        "the largest instead of the least": lambda epsilon, releases, delta: max(
            epsilon * releases, advanced(epsilon, releases, delta)
        ),
        "leaves out the last release": lambda epsilon, releases, delta: min(
            epsilon * (releases - 1), advanced(epsilon, releases, delta)
        ),
        "forgets the drift": lambda epsilon, releases, delta: min(
            epsilon * releases, epsilon * math.sqrt(2 * releases * math.log(1 / delta))
        ),
    },
}


def test_an_accountant_that_still_averages_is_open_and_says_why(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("01")["total"], stub("01", "total"), 0)
    assert verdict.message == "still to do (it still says that many releases cost as much as one)"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("takes responses for truth", "said yes at ε = "),
        ("mends a negative estimate, which biases it", "it should be -"),
    ],
)
def test_a_wrong_estimate_is_told_with_the_case(what: str, says: str) -> None:
    assert says in mark(exercises("01")["estimate"], WRONG["estimate"][what], 0).message


def test_a_wrong_prediction_is_told_with_the_numbers_before_and_after() -> None:
    message = mark(exercises("01")["delta"], WRONG["delta"]["a crowd hides more"], 0).message
    assert message.startswith("twice as many people: you said 'falls', but δ is 0.")
