"""The exercises of notebook 11, the claims ledger."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import Differences, exercises_of, first_wrong, given, predicted
from edp_lab.privacy import Alpha, Mechanism
from edp_lab.reproduce.claims import Verdict
from edp_lab.reproduce.paper.claims_mechanism import p2_noise_of_the_release, p5_micro_batches, p22_free_devices
from edp_lab.reproduce.paper.runs import Change

CHANGES = {  # kinds of lists of (mean, half-width): which verdict they deserve is the library's to say
    "all fall beyond chance": [(-6.0, 2.0), (-3.0, 1.0)],
    "one falls beyond chance, one might be nothing": [(-6.0, 2.0), (-1.0, 3.0)],
    "all might be nothing": [(-2.0, 4.0), (-1.0, 3.0)],
    "one falls beyond chance, one rises and might be nothing": [(-6.0, 2.0), (1.0, 3.0)],
    "one falls, one rises, both beyond chance": [(-6.0, 2.0), (6.0, 2.0)],
    "all rise beyond chance": [(5.0, 1.0), (4.0, 2.0)],
}


SLIPS = {  # what is taken for a fall beyond chance, by what is said of it
    "Your rule counts every fall, even one whose interval reaches above 0.": lambda mean, half: mean < 0,
    "Your rule takes a rise beyond chance for a fall.": lambda mean, half: abs(mean) > half,
    "Your rule looks at the lower end of the interval; all of it must lie below 0.": lambda mean, half: mean - half < 0,
}


def _verdict(answer: Any, cases: np.random.Generator) -> Differences:
    """Verdicts on lists of changes, by how many fall beyond chance; a common slip that explains them all is named."""
    lists, told, got = [], [], []
    for kind, changes in CHANGES.items():
        scale = float(cases.uniform(0.5, 2))
        scaled = [(scale * mean, scale * half) for mean, half in changes]
        cases.shuffle(scaled)
        lists.append(scaled)
        got.append(str(given(answer(list(scaled)))))
        if got[-1] not in tuple(Verdict):
            yield f"a verdict is one of {', '.join(map(repr, map(str, Verdict)))}; yours is {got[-1]!r}."
        told.append(f"{kind}: for " + ", ".join(f"{mean:+.1f} (±{half:.1f})" for mean, half in scaled))
    wanted = _judged(lists, lambda mean, half: Change(mean, half).falls)
    slip = next((f" {said}" for said, falls in SLIPS.items() if _judged(lists, falls) == got), "")
    for case, mine, right in zip(told, got, wanted, strict=True):
        if mine != right:
            yield f"{case} yours is {mine!r}, it should be {right!r}.{slip}"


def _judged(lists: list[list[tuple[float, float]]], falls: Callable[[float, float], bool]) -> list[str]:
    """A verdict on each list by which of its changes fall beyond chance."""
    hits = [[falls(*change) for change in changes] for changes in lists]
    return [str(Verdict.of(all(one), any(one))) for one in hits]


def _noise(answer: Any, cases: np.random.Generator) -> Differences:
    """The deviation of what Algorithm 1 returns, against the library; the bug left in place is still open."""
    untouched, differences = True, []
    for devices in (1, *map(int, cases.integers(2, 33, 3))):
        c, z0 = (round(float(cases.uniform(0.1, 5)), 2) for _ in range(2))
        got = given(answer(devices, c, z0))
        right = Mechanism.as_printed(c, z0, devices, 2, alpha=Alpha.PUBLIC).noise_std(0) / devices
        untouched &= math.isclose(float(got), c * z0 / devices)
        if not math.isclose(float(got), right, rel_tol=1e-6):
            case = f"with N = {devices}, C = {c}, z0 = {z0}"
            differences.append(f"{case} yours is {float(got):.4g}; it should be {right:.4g}.")
    still = "the bug is still in: this is what the paper counts on, not what it draws"
    yield first_wrong(differences, untouched, still)


def _predict(answer: Any, cases: np.random.Generator) -> Differences:
    few, z0 = int(cases.integers(2, 5)), round(float(cases.uniform(0.5, 2)), 1)
    many = 4 * few
    noise = [float(p2_noise_of_the_release(n, z0).measured["times_too_small"]) for n in (few, many)]
    claim = [float(p22_free_devices((1, n), z0).measured["claimed_epsilon"]) for n in (few, many)]
    shared = [float(p5_micro_batches(b, z=z0).measured["epsilon"]) for b in (1, 2, 8)]
    measured = {
        "P2: noise claimed over noise found, with four times as many GPUs": (noise[0], noise[1]),
        "P22: claimed ε, with four times as many GPUs": (claim[0], claim[1]),
        "P5: true ε, two utterances in a micro-batch instead of one": (shared[0], shared[1]),
        "P5: true ε, eight utterances in a micro-batch instead of two": (shared[1], shared[2]),
    }
    yield predicted(answer, measured, f"the number (z0 {z0}, {few} and {many} GPUs)")


EXERCISES = exercises_of(__file__, verdict=_verdict, noise=_noise, predict=_predict)
