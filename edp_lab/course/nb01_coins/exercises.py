"""Exercises of notebook 01: randomised response, delta, and composition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import Differences, close, exercises_of, first_wrong, predicted
from edp_lab.privacy import gdp_delta
from edp_lab.privacy.foundations import advanced_composition, estimate_frequencies, randomised_response


def _estimate(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library on two polls, and on a poll without a yes, which has a negative estimate."""
    for share in (0.2, 0.7, 0.0):
        epsilon, people = round(float(cases.uniform(0.3, 2.5)), 2), int(cases.integers(50, 200))
        truth = (cases.random(people) < share).astype(np.int64)
        responses = randomised_response(truth, epsilon, cases) if share else truth
        wanted, yes = estimate_frequencies(responses, epsilon).estimate[1], responses.mean()
        slips = {
            "This estimate is right only for two fair coins (ε = ln 3): p depends on ε.": 2 * yes - 1 / 2,
            "This is the observed share of yes, which includes lies.": yes,
            "Your code subtracts 1 - p, but does not divide by 2p - 1.": yes - 1 / (math.exp(epsilon) + 1),
        }
        quantity = f"the estimate if {int(responses.sum())} of {people} people said yes at ε = {epsilon}"
        yield close(answer(responses, epsilon), wanted, quantity, slips=slips if share else {})


def _delta(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the exact delta of a count with Gaussian noise before and after each change."""
    epsilon, mu = float(cases.uniform(0.5, 1.5)), float(cases.uniform(0.4, 1.2))
    before = gdp_delta(mu, epsilon)
    measured = {
        "σ doubles": (before, gdp_delta(mu / 2, epsilon)),
        "Δ and σ both double": (before, gdp_delta(2 * mu / 2, epsilon)),
        "twice as many people": (before, gdp_delta(mu, epsilon)),  # the count grows, but not its sensitivity
        "ε is halved": (before, gdp_delta(mu, epsilon / 2)),
    }
    yield predicted(answer, measured, "δ")


def _total(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library in cases with a smaller plain sum and cases with a smaller advanced composition."""
    differences, untouched = [], True
    for epsilon, least, most in ((1.0, 2, 50), (0.1, 2, 50), (0.01, 2_000, 50_000), (0.1, 500, 5_000)):
        releases, delta = int(cases.integers(least, most)), 10.0 ** -int(cases.integers(4, 9))
        got, wanted = answer(epsilon, releases, delta), advanced_composition(epsilon, releases, delta)
        wanted = min(wanted, releases * epsilon)
        untouched &= got is not None and math.isclose(got, epsilon)  # the average of equal epsilons
        differences.append(close(got, wanted, f"{releases} releases of ε = {epsilon} at δ = {delta:g}"))
    yield first_wrong(differences, untouched, "the function still returns the ε of one release")


EXERCISES = exercises_of(__file__, estimate=_estimate, delta=_delta, total=_total)
