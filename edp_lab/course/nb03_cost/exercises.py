"""Exercises of notebook 03: the noise for a target epsilon, and an accountant that undercounts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq

from edp_lab.course.kit.controls import BATCH
from edp_lab.course.kit.exercises import Differences, close, exercises_of, first_wrong, given
from edp_lab.course.kit.text import count
from edp_lab.course.nb03_cost.panels import releases_of
from edp_lab.privacy import GaussianDP, PrivacyLossDistribution, ReshufflingZCDP, Schedule, gdp_epsilon


def _noise(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library on one run without decay and two runs with decay."""
    for epochs, rate, power in ((1, 0.0, 1), (8, 0.3, 1), (int(cases.integers(10, 30)), 0.1, 2)):
        target, delta = round(float(cases.uniform(0.5, 12)), 1), 10.0 ** -int(cases.integers(4, 8))
        decay = (1 + rate * np.arange(epochs)) ** -power
        got = np.asarray(given(answer(target, decay.copy(), delta)), dtype=float)
        if got.shape != (2,):
            yield "Return two numbers: z0 by zCDP, and z0 by Gaussian DP."
        mu = brentq(_beyond, 1e-3, 100.0, (target, delta), xtol=1e-12)
        root = math.sqrt(math.log(1 / delta))
        rho = (math.sqrt(root**2 + target) - root) ** 2
        wanted = total_mu(decay) / np.array([math.sqrt(2 * rho), mu])
        slips = {
            "Your numbers are in the wrong order: return z0 by zCDP first.": wanted[::-1],
            "Your code adds up μ over the epochs: add up the squares of μ.": [
                wanted[0],
                (1 / decay).sum() / mu,
            ],
            "Your code uses the noise of the first epoch in all epochs: each epoch has its own z.": math.sqrt(epochs)
            * wanted
            / total_mu(decay),
            "Your code divides by d: with less noise in late epochs, z0 must be larger.": wanted
            * total_mu(1 / decay)
            / total_mu(decay),
            "Your code omits the 2 in ρ = 1/(2 z²).": wanted * [math.sqrt(2), 1],
            "Your code uses the square of the run's μ: take the root.": [wanted[0], total_mu(decay) * wanted[1]],
            "Your numbers are the same: zCDP is a bound and needs more noise than the exact ε.": [wanted[0]] * 2,
        }
        case = f"z0 for ε = {target}, δ = {delta:g} and {count(epochs, 'epoch')}{' with decay' if rate else ''}"
        yield close(got, wanted, case, slips=slips)


def _beyond(mu: float, target: float, delta: float) -> float:
    return gdp_epsilon(mu, delta) - target


def total_mu(z: np.ndarray) -> float:
    """μ of a run with these noise multipliers, one per epoch."""
    return GaussianDP(Schedule(z, np.ones(len(z)))).mu


def _bill(answer: Any, cases: np.random.Generator) -> Differences:
    """Accept any valid epsilon for shuffled batches in which the mean of each micro-batch is clipped."""
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
            "; that is the ε of secret random samples, but the batches are shuffled": PrivacyLossDistribution(
                releases_of(z, steps, rate)
            ),
            "; your code uses C as the sensitivity": GaussianDP(releases_of(noise / clip, epochs)),
            "; your code counts every step, but an utterance takes part in one step per epoch": GaussianDP(
                releases_of(z, steps)
            ),
        }
        because = [what for what, account in known.items() if math.isclose(got, account.epsilon(delta), rel_tol=1e-3)]
        yours = f"your ε is {float(got):.4g}, but Gaussian DP gives {exact:.4g}{''.join(because[:1])}"
        verdicts.append(f"With noise {noise}, C = {clip} and {epochs} epochs, {yours}.")
    yield first_wrong(verdicts, untouched, "shuffled batches still count as samples, and C is still the sensitivity")


EXERCISES = exercises_of(__file__, noise=_noise, bill=_bill)
