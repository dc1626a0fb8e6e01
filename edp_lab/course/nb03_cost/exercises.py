"""The exercises of notebook 03, what does it cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.course.kit.controls import BATCH
from edp_lab.course.kit.exercises import Differences, close, exercises_of, first_wrong, given
from edp_lab.course.nb03_cost.panels import releases_of
from edp_lab.privacy import GaussianDP, PrivacyLossDistribution, ReshufflingZCDP, Schedule


def _compose(answer: Any, cases: np.random.Generator) -> Differences:
    """Against the library on runs with a noise multiplier of its own for each epoch."""
    for epochs in (1, 2, int(cases.integers(5, 30))):
        z = cases.uniform(0.4, 6, epochs).round(2)
        case = f"noise multipliers {z.tolist()}" if epochs < 3 else f"{epochs} epochs"
        total, like_the_first, square = (1 / z).sum(), math.sqrt(epochs) / z[0], (1 / z**2).sum()
        slips = {
            "That adds up μ itself, as if the noises of all epochs pulled the same way: their squares add up.": total,
            "That takes all epochs to have as much noise as the first, √T/z₀: each has a z of its own.": like_the_first,
            "That is the square of the run's μ: the root is missing.": square,
        }
        wanted = GaussianDP(Schedule(z, np.ones(epochs))).mu
        yield close(answer(z.copy()), wanted, f"{case}; μ of the run", slips=slips)


def _bill(answer: Any, cases: np.random.Generator) -> Differences:
    """Shuffled batches of micro-batches that share a clip; any account of the right releases will do."""
    untouched, verdicts, delta = True, [], 1e-5
    for _ in range(4):
        noise, clip = (round(float(cases.uniform(low, 4)), 1) for low in (1, 0.5))
        epochs, utterances = int(cases.integers(3, 20)), BATCH * int(cases.integers(30, 100))
        steps, rate = epochs * utterances // BATCH, BATCH / utterances
        got = given(answer(noise, clip, epochs, BATCH, utterances, delta))
        half = PrivacyLossDistribution(releases_of(noise / clip, steps, rate))
        untouched &= math.isclose(got, half.epsilon(delta), rel_tol=1e-9)
        z = noise / (2 * clip)
        exact = GaussianDP(releases_of(z, epochs)).epsilon(delta)
        if exact * (1 - 1e-6) <= got <= ReshufflingZCDP(releases_of(z, epochs)).epsilon(delta) * 1.01:
            continue
        known = {
            "; that is the price of a secret random sample, but the batches were shuffled": PrivacyLossDistribution(
                releases_of(z, steps, rate)
            ),
            "; that takes C for the sensitivity": GaussianDP(releases_of(noise / clip, epochs)),
            "; that bills every step, but an utterance is in one step of an epoch only": GaussianDP(
                releases_of(z, steps)
            ),
        }
        because = [what for what, account in known.items() if math.isclose(got, account.epsilon(delta), rel_tol=1e-3)]
        yours = f"yours is ε = {float(got):.4g}, Gaussian DP says {exact:.4g}{''.join(because[:1])}"
        verdicts.append(f"noise {noise}, C = {clip}, {epochs} epochs: {yours}.")
    yield first_wrong(
        verdicts, untouched, "it still bills shuffled batches as a sample, and takes C for the sensitivity"
    )


EXERCISES = exercises_of(__file__, compose=_compose, bill=_bill)
