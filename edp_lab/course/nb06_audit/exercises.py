"""Exercises of ``06_audit.ipynb``: lower bounds on epsilon, a flawed audit, verdicts."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from edp_lab.attacks.statistics import error_rate, lower_bounds, mu_lower_bound
from edp_lab.attacks.step_audit import Finding
from edp_lab.course.kit.exercises import Differences, chosen, close, exercises_of, given
from edp_lab.course.kit.text import at_least
from edp_lab.course.nb06_audit.panels import CONFIDENCE, DELTA, StepNoise, audit_step
from edp_lab.privacy import gdp_epsilon

AUDITS = 30  # audits of a step with a known epsilon
# By question: whether the step is as printed, N, z0, and draws per side. C is 1.
QUESTIONS = {
    "as printed, N = 8, z0 = 1, 100 draws": (True, 8, 1.0, 100),
    "as printed, N = 1, z0 = 1, 10,000 draws": (True, 1, 1.0, 10_000),
    "as printed, N = 8, z0 = 0.3, 10 draws": (True, 8, 0.3, 10),
    "sound, N = 8, z0 = 1, 10,000 draws": (False, 8, 1.0, 10_000),
}


def _at_least(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library, also for rates that lead to a bound of 0; either rate can be the smaller one."""
    for low, high in ((0.001, 0.05), (0.02, 0.4), (0.3, 0.95)):
        small, large = sorted(cases.uniform(low, high, 2).round(4).tolist())
        delta = 10.0 ** -int(cases.integers(2, 6))
        for fpr, fnr in ((small, large), (large, small)):
            wanted = lower_bounds(fpr, fnr, delta).distribution_free
            quantity = f"FPR at most {fpr:g}, FNR at most {fnr:g}, δ = {delta:g}: ε"
            yield close(answer(fpr, fnr, delta), wanted, quantity)


def _verdicts(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare the predictions with the verdicts of the audits."""
    verdicts = [str(finding) for finding in Finding]
    yield chosen(answer, _audited(), verdicts, f"not one of {', '.join(map(repr, verdicts))}")


@cache
def _audited() -> dict[str, tuple[str, str]]:
    """Map each question to its verdict and to the reply to a wrong answer."""
    noise, right = StepNoise(0), {}
    for question, (printed, num_devices, z0, draws) in QUESTIONS.items():
        audit = audit_step(noise, printed, 1.0, z0, num_devices, draws).audit
        correction = (
            f"you said {{!r}}, but ε = {audit.claimed_epsilon:.3g} is claimed, {at_least(audit.bounds.gaussian)} is "
            f"measured and at most {at_least(audit.ceiling)} is measurable, so the verdict is {str(audit.verdict)!r}"
        )
        right[question] = str(audit.verdict), correction
    return right


Draws = tuple[np.ndarray, np.ndarray]  # outputs without and with the canary


def _honest(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare on Gaussian steps, and count how often a wrong answer measures more than the guaranteed epsilon."""

    def drawn(mu: float, draws: int) -> Draws:
        midpoint = cases.uniform(-2, 2)
        return cases.normal(midpoint - mu / 2, 1, draws), cases.normal(midpoint + mu / 2, 1, draws)

    differs = None
    for mu, draws in ((1.0, 100), (3.0, 400), (0.4, 50), (6.0, 100)):
        absent, present = drawn(mu, draws)
        got = np.asarray(given(answer(absent.copy(), present.copy(), DELTA)), dtype=float)
        if got.shape != (2,):
            yield "return two numbers: the threshold, and the ε that the other draws show at this threshold."
        threshold, measured = map(float, got)
        where = f"{draws} draws per side at a guaranteed ε = {gdp_epsilon(mu, DELTA):.3g}; "
        differs = differs or _threshold(threshold, (absent, present), where)
        differs = differs or _shown(threshold, measured, (absent, present), where)
    if differs:
        true = gdp_epsilon(1.0, DELTA)
        more = sum(answer(*drawn(1.0, 100), DELTA)[1] > true for _ in range(AUDITS))
        how_often = f"Your ε is too large in {more} of {AUDITS} audits of a step with ε = {true:.3g}."
        yield f"{differs}\n   {how_often}"


def _limits(draws: Draws, threshold: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return upper confidence limits on the false positive and false negative rates."""
    absent, present = draws
    false_positive, false_negative = (
        error_rate(wrong, confidence).upper_limit for wrong in (absent > threshold, present <= threshold)
    )
    return false_positive, false_negative


def _threshold(mine: float, draws: Draws, where: str) -> str | None:
    """Return None if no other threshold shows a larger μ on the draws `[::2]`, else a message."""

    def short_of_best(these: Draws) -> float:
        most = max(mu_lower_bound(*_limits(these, float(t))) for t in np.concatenate(these))
        return most - mu_lower_bound(*_limits(these, mine))

    absent, present = draws
    short = short_of_best((absent[::2], present[::2]))
    if short < 1e-9:
        return None
    if short_of_best(draws) < 1e-9 or short_of_best((absent[1::2], present[1::2])) < 1e-9:
        return f"{where}the draws to be counted also chose your threshold: only `[::2]` may choose it."
    return f"{where}on the draws `[::2]`, the μ at your threshold is {short:.3g} below the largest μ."


def _shown(threshold: float, mine: float, draws: Draws, where: str) -> str | None:
    """Compare the measured epsilon with the library's, at a correct threshold."""
    absent, present = draws
    choosing, counted = ((absent[start::2], present[start::2]) for start in (0, 1))
    bounds, limits = partial(lower_bounds, delta=DELTA), _limits(counted, threshold)
    rates = [max(float(np.mean(wrong)), 1e-9) for wrong in (counted[0] > threshold, counted[1] <= threshold)]
    wanted = bounds(*limits)
    slips = {
        "an observed rate is only an estimate: replace it by its upper limit.": bounds(*rates).gaussian,
        "the draws that chose the threshold cannot judge it: count the errors of the other draws.": bounds(
            *_limits(choosing, threshold)
        ).gaussian,
        "half of your draws chose the threshold: count only the errors of the other half.": bounds(
            *_limits(draws, threshold)
        ).gaussian,
        "each of your limits is too low in 5 % of audits, so both are correct in only 90 %: use 2.5 %.": bounds(
            *_limits(counted, threshold, 0.9)
        ).gaussian,
        "this is the bound for any mechanism: the noise is known to be Gaussian, so a larger bound is valid.": (
            wanted.distribution_free
        ),
        "this is μ: compute ε from it.": mu_lower_bound(*limits),
    }
    return close(mine, wanted.gaussian, f"{where}the measured ε", atol=1e-6, slips=slips)


EXERCISES = exercises_of(__file__, at_least=_at_least, honest=_honest, verdicts=_verdicts)
