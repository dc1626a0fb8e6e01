"""The exercises of notebook 06, audits."""

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

AUDITS = 30  # of a step whose epsilon is known
# Variant, N, z0, draws per side; C is 1.
QUESTIONS = {
    "as printed, N = 8, z0 = 1, 100 draws": (True, 8, 1.0, 100),
    "as printed, N = 1, z0 = 1, 10,000 draws": (True, 1, 1.0, 10_000),
    "as printed, N = 8, z0 = 0.3, 10 draws": (True, 8, 0.3, 10),
    "sound, N = 8, z0 = 1, 10,000 draws": (False, 8, 1.0, 10_000),
}


def _at_least(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library: either rate can be the smaller one, and some rates prove nothing."""
    for low, high in ((0.001, 0.05), (0.02, 0.4), (0.3, 0.95)):
        small, large = sorted(cases.uniform(low, high, 2).round(4).tolist())
        delta = 10.0 ** -int(cases.integers(2, 6))
        for fpr, fnr in ((small, large), (large, small)):
            wanted = lower_bounds(fpr, fnr, delta).distribution_free
            quantity = f"FPR at most {fpr:g}, FNR at most {fnr:g}, δ = {delta:g}: ε"
            yield close(answer(fpr, fnr, delta), wanted, quantity)


def _verdicts(answer: Any, cases: np.random.Generator) -> Differences:
    """The audits themselves."""
    verdicts = [str(finding) for finding in Finding]
    yield chosen(answer, _audited(), verdicts, f"not one of {', '.join(map(repr, verdicts))}")


@cache
def _audited() -> dict[str, tuple[str, str]]:
    """Each question's verdict, and the reply to any other answer."""
    noise, right = StepNoise(0), {}
    for question, (printed, num_devices, z0, draws) in QUESTIONS.items():
        audit = audit_step(noise, printed, 1.0, z0, num_devices, draws).audit
        correction = (
            f"you said {{!r}}, but with ε = {audit.claimed_epsilon:.3g} claimed, {at_least(audit.bounds.gaussian)} "
            f"measured and {at_least(audit.ceiling)} measurable at most, it is {str(audit.verdict)!r}"
        )
        right[question] = str(audit.verdict), correction
    return right


Draws = tuple[np.ndarray, np.ndarray]  # outputs without and with the canary


def _honest(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare on Gaussian steps. The message says how often a wrong answer measures more than guaranteed."""

    def drawn(mu: float, draws: int) -> Draws:
        midpoint = cases.uniform(-2, 2)
        return cases.normal(midpoint - mu / 2, 1, draws), cases.normal(midpoint + mu / 2, 1, draws)

    differs = None
    for mu, draws in ((1.0, 100), (3.0, 400), (0.4, 50), (6.0, 100)):
        absent, present = drawn(mu, draws)
        got = np.asarray(given(answer(absent.copy(), present.copy(), DELTA)), dtype=float)
        if got.shape != (2,):
            yield "return two numbers: the threshold, and the ε that the other draws show at it."
        threshold, measured = map(float, got)
        where = f"{draws} draws per side at a guaranteed ε = {gdp_epsilon(mu, DELTA):.3g}; "
        differs = differs or _threshold(threshold, (absent, present), where)
        differs = differs or _shown(threshold, measured, (absent, present), where)
    if differs:
        true = gdp_epsilon(1.0, DELTA)
        more = sum(answer(*drawn(1.0, 100), DELTA)[1] > true for _ in range(AUDITS))
        how_often = f"Of {AUDITS} audits of a step whose ε is {true:.3g}, yours measures more than that in {more}."
        yield f"{differs}\n   {how_often}"


def _limits(draws: Draws, threshold: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Upper limits of both rates."""
    absent, present = draws
    false_positive, false_negative = (
        error_rate(wrong, confidence).upper_limit for wrong in (absent > threshold, present <= threshold)
    )
    return false_positive, false_negative


def _threshold(mine: float, draws: Draws, where: str) -> str | None:
    """None if no other threshold shows more on the first half of the draws."""

    def short_of_best(these: Draws) -> float:
        most = max(mu_lower_bound(*_limits(these, float(t))) for t in np.concatenate(these))
        return most - mu_lower_bound(*_limits(these, mine))

    absent, present = draws
    short = short_of_best((absent[::2], present[::2]))
    if short < 1e-9:
        return None
    if short_of_best(draws) < 1e-9 or short_of_best((absent[1::2], present[1::2])) < 1e-9:
        return f"{where}draws that are counted chose your threshold: only `[::2]` may choose it."
    return f"{where}on the draws that choose it, your threshold shows a μ that is {short:.3g} less than the best one's."


def _shown(threshold: float, mine: float, draws: Draws, where: str) -> str | None:
    """The measured epsilon against the library's, at a threshold that is right."""
    absent, present = draws
    choosing, counted = ((absent[start::2], present[start::2]) for start in (0, 1))
    bounds, limits = partial(lower_bounds, delta=DELTA), _limits(counted, threshold)
    rates = [max(float(np.mean(wrong)), 1e-9) for wrong in (counted[0] > threshold, counted[1] <= threshold)]
    wanted = bounds(*limits)
    slips = {
        "a counted rate is no probability: replace it by its upper limit.": bounds(*rates).gaussian,
        "the draws that chose the threshold cannot judge it: count the errors of the others.": bounds(
            *_limits(choosing, threshold)
        ).gaussian,
        "half of your draws chose the threshold: count the errors of the other half alone.": bounds(
            *_limits(draws, threshold)
        ).gaussian,
        "each of your limits is too low in 5 % of audits, so both hold together at 90 %: take 2.5 %.": bounds(
            *_limits(counted, threshold, 0.9)
        ).gaussian,
        "that is the bound for any mechanism: this noise is known to be Gaussian, which shows more.": (
            wanted.distribution_free
        ),
        "that is μ: the step from μ to ε is missing.": mu_lower_bound(*limits),
    }
    return close(mine, wanted.gaussian, f"{where}what they measure", atol=1e-6, slips=slips)


EXERCISES = exercises_of(__file__, at_least=_at_least, honest=_honest, verdicts=_verdicts)
