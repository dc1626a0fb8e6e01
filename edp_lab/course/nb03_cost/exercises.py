"""The exercises of notebook 03, what does it cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.course.kit.controls import BATCH
from edp_lab.course.kit.exercises import Differences, close, exercises_of, first_wrong, given, predicted
from edp_lab.course.nb03_cost.panels import releases_of
from edp_lab.privacy import (
    Alpha,
    Decay,
    GaussianDP,
    Mechanism,
    PrivacyLossDistribution,
    ReshufflingZCDP,
    Schedule,
    claimed_epsilon,
    guaranteed_epsilon,
    releases_by_epoch,
    schedule_of,
)
from edp_lab.privacy.calibration import Budget, calibrate_z0


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


def _decay(answer: Any, cases: np.random.Generator) -> Differences:
    """A run without decay, and the same with it."""
    epochs, delta = int(cases.integers(10, 31)), 1e-5
    z0, tau = round(float(cases.uniform(0.5, 3)), 1), round(float(cases.uniform(0.05, 0.2)), 2)

    def run(decay: Decay) -> Mechanism:
        return Mechanism.as_printed(1.0, z0, 8, 8, decay, tau, Alpha.PUBLIC)

    before, after = run(Decay.NONE), run(Decay.EXPONENTIAL)
    budget = Budget(8.0, delta)
    measured = {
        "the noise of the first epoch": (before.noise_std(0), after.noise_std(0)),
        "the ε that the paper claims": (claimed_epsilon(before, epochs, delta), claimed_epsilon(after, epochs, delta)),
        "the ε that holds": (guaranteed_epsilon(before, epochs, delta), guaranteed_epsilon(after, epochs, delta)),
        "the z0 that meets ε = 8": (calibrate_z0(before, epochs, budget), calibrate_z0(after, epochs, budget)),
    }
    yield predicted(answer, measured, f"it (as printed, N = 8, z0 = {z0}, {epochs} epochs, τ from 0 to {tau})")


def _bill(answer: Any, cases: np.random.Generator) -> Differences:
    """Algorithm 1 with a public alpha on shuffled batches; any account of the right releases will do."""
    untouched, verdicts, delta = True, [], 1e-5
    for _ in range(4):
        z0, devices = round(float(cases.uniform(0.5, 4)), 1), int(cases.choice([2, 4, 8, 16]))
        epochs, utterances = int(cases.integers(3, 20)), BATCH * int(cases.integers(30, 100))
        steps, rate = epochs * utterances // BATCH, BATCH / utterances
        got = given(answer(z0, devices, epochs, BATCH, utterances, delta))
        untouched &= math.isclose(
            got, PrivacyLossDistribution(releases_of(z0, steps, rate)).epsilon(delta), rel_tol=1e-9
        )
        mechanism = Mechanism.as_printed(1.0, z0, devices, BATCH // devices, alpha=Alpha.PUBLIC)
        z, schedule = mechanism.noise_multiplier(0), schedule_of(mechanism, releases_by_epoch(mechanism, epochs))
        exact = guaranteed_epsilon(mechanism, epochs, delta)
        if exact * (1 - 1e-6) <= got <= ReshufflingZCDP(schedule).epsilon(delta) * 1.01:
            continue
        sample, each = PrivacyLossDistribution(releases_of(z, steps, rate)), GaussianDP(releases_of(z, steps))
        known = {
            "; that is the price of a secret random sample, but the batches were shuffled": sample,
            "; that takes z0 at face value": GaussianDP(releases_of(z0, epochs)),
            "; that bills every step, but an utterance is in one step of an epoch only": each,
        }
        because = [what for what, account in known.items() if math.isclose(got, account.epsilon(delta), rel_tol=1e-3)]
        yours = f"yours is ε = {float(got):.4g}, Gaussian DP says {exact:.4g}{''.join(because[:1])}"
        verdicts.append(f"z0 = {z0}, N = {devices}, {epochs} epochs: {yours}.")
    yield first_wrong(verdicts, untouched, "it still bills shuffled batches as a sample, and takes z0 at face value")


EXERCISES = exercises_of(__file__, compose=_compose, decay=_decay, bill=_bill)
