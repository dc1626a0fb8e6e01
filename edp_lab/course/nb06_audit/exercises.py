"""The exercises of notebook 06, audits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from edp_lab.attacks.statistics import error_rate, lower_bounds
from edp_lab.attacks.step_audit import Finding
from edp_lab.course.kit.exercises import Differences, chosen, close, exercises_of
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
    """Against the library: either rate the smaller one, and rates that prove nothing."""
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
    """Each question's verdict, and what is said to another."""
    noise, right = StepNoise(0), {}
    for question, (printed, num_devices, z0, draws) in QUESTIONS.items():
        audit = audit_step(noise, printed, 1.0, z0, num_devices, draws).audit
        correction = (
            f"you said {{!r}}, but with ε = {audit.claimed_epsilon:.3g} claimed, {at_least(audit.bounds.gaussian)} "
            f"measured and {at_least(audit.ceiling)} measurable at most, it is {str(audit.verdict)!r}"
        )
        right[question] = str(audit.verdict), correction
    return right


def _honest(answer: Any, cases: np.random.Generator) -> Differences:
    """Against the library on Gaussian steps. The message says how often a wrong one measures more than guaranteed."""

    def drawn(mu: float, draws: int) -> tuple[np.ndarray, np.ndarray]:
        return cases.normal(-mu / 2, 1, draws), cases.normal(mu / 2, 1, draws)

    differs = None
    for mu, draws in ((1.0, 100), (3.0, 400), (0.4, 50), (6.0, 100)):
        absent, present = drawn(mu, draws)
        limits = [error_rate(wrong, CONFIDENCE).upper_limit for wrong in (absent > 0, present <= 0)]
        wanted = lower_bounds(limits[0], limits[1], DELTA).gaussian
        quantity = f"{draws} draws per side at a guaranteed ε = {gdp_epsilon(mu, DELTA):.3g}; what they measure"
        differs = differs or close(answer(absent.copy(), present.copy(), DELTA), wanted, quantity, atol=1e-6)
    if differs:
        true = gdp_epsilon(1.0, DELTA)
        more = sum(answer(*drawn(1.0, 100), DELTA) > true for _ in range(AUDITS))
        how_often = f"Of {AUDITS} audits of a step whose ε is {true:.3g}, yours measures more than that in {more}."
        yield f"{differs}\n   {how_often}"


EXERCISES = exercises_of(__file__, at_least=_at_least, honest=_honest, verdicts=_verdicts)
