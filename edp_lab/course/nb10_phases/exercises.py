"""Exercises of ``10_three_phases.ipynb``: a noisy vote, the epsilon of parts, noise for many labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import Differences, exercises_of, first_wrong, given, predicted
from edp_lab.three_phase.votes import Aggregator, Vote, composed_epsilons, label_probabilities, partition_cost

DRAWS = 3_000  # draws of one vote: enough to estimate shares of wins to 0.01
BY_CHANCE = 5  # standard deviations; about one right answer in a hundred thousand exceeds this limit
MNIST = 60_000


def _gnmax(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare how often each label wins with the exact probabilities."""
    for labels in (3, 10):
        counts, sigma = cases.integers(0, 12, labels), round(float(cases.uniform(2.5, 6)), 1)
        won = [given(answer(counts.copy(), sigma, cases)) for _ in range(DRAWS)]
        winners = np.asarray(won, dtype=float)
        if not np.isin(winners, np.arange(labels)).all():
            yield f"votes {counts.tolist()}: return a label from 0 to {labels - 1}; your function returns {won[0]!r}."
        chances = label_probabilities(counts, Aggregator(Vote.GAUSSIAN, sigma))
        shares = np.bincount(winners.astype(int), minlength=labels) / DRAWS
        beyond = np.abs(shares - chances) - BY_CHANCE * np.sqrt(chances * (1 - chances) / DRAWS) - 1 / DRAWS
        if beyond.max() > 0:
            label, votes = int(beyond.argmax()), f"votes {counts.tolist()}, σ = {sigma}"
            comparison = f"should win in {chances[label]:.0%} of all draws, but wins in {shares[label]:.0%} of yours"
            yield f"{votes}: label {label} {comparison}."


def _parts(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library's account of instructors that train on parts of MNIST."""
    batch, epochs = 10 * int(cases.integers(10, 41)), int(cases.integers(3, 12))
    noise, delta = round(float(cases.uniform(0.9, 1.6)), 2), 1e-5
    cost = partition_cost(MNIST, 10, batch, epochs, noise, delta)
    alone, smaller = (partition_cost(MNIST // 10, 1, size, epochs, noise, delta).one for size in (batch, batch // 10))
    measured = {
        "a tenth of the images, the same batch size": (cost.one, alone),
        "a tenth of the images, a tenth of the batch size": (cost.one, smaller),
        "all ten instructors instead of one of them": (alone, cost.together),
    }
    yield predicted(answer, measured, f"ε (batches of {batch} at first, {epochs} epochs, noise multiplier {noise})")


def _budget(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare the plain sum over labels, at the scale of the answer, with the allowed total."""
    untouched, verdicts = True, []
    for _ in range(3):
        total, labels = round(float(cases.uniform(0.2, 20)), 1), int(cases.integers(10, 10_000))
        scale = given(answer(total, labels))
        untouched &= math.isclose(scale, 1 / total)
        verdicts.append(_overspent(float(scale), total, labels))
    yield first_wrong(verdicts, untouched, "the noise is still the same for a thousand labels as for one")


def _overspent(scale: float, total: float, labels: int) -> str | None:
    if not 0 < scale < math.inf:
        return f"the scale must be finite and greater than 0; yours is {scale:g} for {labels} labels at ε = {total}."
    spent = composed_epsilons(Aggregator(Vote.LAPLACE, scale), labels, 1e-5)["plain sum"]
    if math.isclose(spent, total, rel_tol=1e-6):
        return None
    return f"with noise of scale {scale:.4g} on each count, {labels} labels cost ε = {spent:.4g}, not {total}."


EXERCISES = exercises_of(__file__, gnmax=_gnmax, parts=_parts, budget=_budget)
