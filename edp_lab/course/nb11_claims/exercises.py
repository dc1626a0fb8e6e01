"""Exercises of ``11_claims.ipynb``: a verdict from intervals, and the noise of Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import Differences, exercises_of, first_wrong, given
from edp_lab.privacy import Alpha, Mechanism

VERDICTS = ("holds", "holds under conditions", "does not hold")
CHANGES = {  # lists of (mean, half-width), by kind
    "all fall beyond chance": [(-6.0, 2.0), (-3.0, 1.0)],
    "one falls beyond chance, one may be chance": [(-6.0, 2.0), (-1.0, 3.0)],
    "all may be chance": [(-2.0, 4.0), (-1.0, 3.0)],
    "one falls beyond chance, one rises but may be chance": [(-6.0, 2.0), (1.0, 3.0)],
    "one falls, one rises, both beyond chance": [(-6.0, 2.0), (6.0, 2.0)],
    "all rise beyond chance": [(5.0, 1.0), (4.0, 2.0)],
}
SLIPS = {  # wrong rules for "falls beyond chance", by the sentence that explains the mistake
    "Your rule counts every fall, even one whose interval reaches above 0.": lambda mean, half: mean < 0,
    "Your rule counts a significant rise as a fall.": lambda mean, half: abs(mean) > half,
    "Your rule only looks at the lower end of the interval; use the upper end.": lambda mean, half: mean - half < 0,
}


def _verdict(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare verdicts on lists of changes; the message names a common mistake that explains all verdicts."""
    lists, labels, got = [], [], []
    for kind, changes in CHANGES.items():
        scale = float(cases.uniform(0.5, 2))
        scaled = [(scale * mean, scale * half) for mean, half in changes]
        cases.shuffle(scaled)
        lists.append(scaled)
        got.append(str(given(answer(list(scaled)))))
        if got[-1] not in VERDICTS:
            yield f"a verdict is one of {', '.join(map(repr, VERDICTS))}; yours is {got[-1]!r}."
        labels.append(f"{kind}: for " + ", ".join(f"{mean:+.1f} (±{half:.1f})" for mean, half in scaled))
    wanted = _judged(lists, lambda mean, half: mean + half < 0)
    slip = next((f" {sentence}" for sentence, falls in SLIPS.items() if _judged(lists, falls) == got), "")
    for case, mine, right in zip(labels, got, wanted, strict=True):
        if mine != right:
            yield f"{case} yours is {mine!r}, it should be {right!r}.{slip}"


def _judged(lists: list[list[tuple[float, float]]], falls: Callable[[float, float], bool]) -> list[str]:
    """Return a verdict on each list, given the rule for a fall beyond chance."""
    hits = [[falls(*change) for change in changes] for changes in lists]
    return [VERDICTS[0] if all(falling) else VERDICTS[1] if any(falling) else VERDICTS[2] for falling in hits]


def _printed(devices: int, micro_batch_size: int, z0: float, clip_norm: float = 1.0) -> Mechanism:
    return Mechanism.as_printed(clip_norm, z0, devices, micro_batch_size, alpha=Alpha.PUBLIC)


def _noise(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare the noise in the result of Algorithm 1 with the library's."""
    untouched, differences = True, []
    for devices in (1, *map(int, cases.integers(2, 33, 3))):
        c, z0 = (round(float(cases.uniform(0.1, 5)), 2) for _ in range(2))
        got = given(answer(devices, c, z0))
        right = _printed(devices, 2, z0, c).noise_std(0) / devices
        untouched &= math.isclose(float(got), c * z0 / devices)
        if not math.isclose(float(got), right, rel_tol=1e-6):
            case = f"with N = {devices}, C = {c}, z0 = {z0}"
            differences.append(f"{case} yours is {float(got):.4g}; it should be {right:.4g}.")
    still = "the bug is still there: this is the noise that the paper assumes, not the noise of its algorithm"
    yield first_wrong(differences, untouched, still)


EXERCISES = exercises_of(__file__, verdict=_verdict, noise=_noise)
