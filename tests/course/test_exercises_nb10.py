"""What students get wrong in notebook 10; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import exercises, mark


def guess(batches_as_before: str, smaller_batches: str, all_ten: str) -> dict[str, str]:
    return {
        "a tenth of the images, batches as before": batches_as_before,
        "a tenth of the images, batches of a tenth": smaller_batches,
        "ten instructors instead of one of them": all_ten,
    }


def noise_for_all(counts: Any, sigma: float, rng: np.random.Generator) -> Any:
    return np.argmax(counts + rng.normal(0, sigma))


def noisy_count(counts: Any, sigma: float, rng: np.random.Generator) -> Any:
    return (counts + rng.normal(0, sigma, len(counts))).max()


def variance(counts: Any, sigma: float, rng: np.random.Generator) -> Any:
    return np.argmax(counts + rng.normal(0, math.sqrt(sigma), len(counts)))


def laplace(counts: Any, sigma: float, rng: np.random.Generator) -> Any:
    return np.argmax(counts + rng.laplace(0, 2 * sigma, len(counts)))


WRONG: dict[str, dict[str, Any]] = {
    "gnmax": {
        "one noise for all counts": noise_for_all,
        "the noisy count instead of its label": noisy_count,
        "takes sigma for the variance": variance,
        "Laplace noise": laplace,
        "takes the counts for votes (crash)": lambda counts, sigma, rng: counts[sigma],
    },
    "parts": {
        "ten times more private": guess("falls", "falls", "stays"),
        "the costs of ten add up": guess("rises", "stays", "rises"),
        "forgets how often an image is drawn": guess("stays", "stays", "stays"),
        "less data, less privacy": guess("rises", "rises", "stays"),
    },
    "budget": {
        "shares it out, but one vote moves one count": lambda total, labels: labels / total,
        "two counts, but every label has all of it": lambda total, labels: 2 / total,
        "adds up by the root": lambda total, labels: 2 * math.sqrt(labels) / total,
        "upside down": lambda total, labels: total / (2 * labels),
        "rounds, and the budget is overdrawn": lambda total, labels: 2 * labels // total,
    },
}


def test_a_budget_that_is_untouched_is_open_and_says_why(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("10")["budget"], stub("10", "budget"), 0)
    assert verdict.message == "still to do (the noise is still the same for one label and for a thousand)"


def test_an_overspent_budget_is_told_in_epsilon() -> None:
    message = mark(exercises("10")["budget"], lambda total, labels: labels / total, 0).message
    spent, budget = (
        float(part.split()[0].rstrip(".,")) for part in (message.split("cost ε = ")[1], message.split("not ")[1])
    )
    assert math.isclose(spent, 2 * budget, rel_tol=1e-3)


def test_a_vote_that_ignores_the_noise_is_told_by_how_often_a_label_wins() -> None:
    message = mark(exercises("10")["gnmax"], noise_for_all, 0).message
    assert "of all draws, yours lets it win in" in message
