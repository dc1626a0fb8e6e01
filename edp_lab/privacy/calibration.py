"""Calibration of the noise to a privacy budget.

The noise is rounded up, so epsilon never exceeds the budget. For epsilon of at least 0.01, the relative gap between
them is at most 1e-6 (1e-4 with Poisson sampling). Brent's method needs a sixth of the evaluations of bisection.
NoGuarantee is raised if the mechanism guarantees nothing at any noise level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from scipy.optimize import brentq

from edp_lab.errors import UsageError
from edp_lab.privacy.gdp import check_delta
from edp_lab.privacy.guarantee import accountant_for, representable
from edp_lab.privacy.mechanism import Adjacency, Mechanism, NoGuarantee
from edp_lab.privacy.schedule import releases_by_epoch

PRECISION = 1e-9  # relative precision of z0; a small epsilon changes a hundred times as fast
SMALLEST_Z, LARGEST_Z = 1e-9, 1e9
SPARED = 1e-8  # maximum relative gap to the target epsilon at which the search stops


@dataclass(frozen=True)
class Budget:
    """Privacy budget: a target epsilon above 0 at a delta in (0, 1), and the privacy unit."""

    epsilon: float
    delta: float
    adjacency: Adjacency | None = None
    utterances_per_person: int = 1

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not 0 < self.epsilon < math.inf:
            raise UsageError(f"target epsilon is {self.epsilon}: it must be a finite number greater than 0")

    def excess(self, mechanism: Mechanism, releases: int | Mapping[int, int]) -> float:
        """Return ln(actual epsilon / target epsilon) for a number of epochs or for releases by epoch (see `judge`).

        The result is between -691 (nothing is released) and 700 (the last epoch has too little noise).
        """
        if mechanism.why_no_guarantee():
            raise NoGuarantee(mechanism.why_no_guarantee())
        mechanism.sensitivity(self.adjacency)
        releases = releases_by_epoch(mechanism, releases)
        try:
            representable(0.0, mechanism, releases)
        except NoGuarantee:
            return 700.0
        cost = accountant_for(mechanism, releases, self.adjacency, self.utterances_per_person).epsilon(self.delta)
        ratio = cost / self.epsilon * (1 + 1e-15)  # rounding must not make it meet the budget
        return min(700.0, math.log(max(ratio, 1e-300)))


def calibrate_z0(mechanism: Mechanism, releases: int | Mapping[int, int], budget: Budget) -> float:
    """Return the smallest z0 for which these epochs or releases of the mechanism stay within the budget.

    Raises:
        UsageError: no z0 is large enough.
    """

    @cache
    def excess(log_z0: float) -> float:
        overshoot = budget.excess(replace(mechanism, z0=math.exp(log_z0)), releases)
        return 0.0 if -SPARED <= overshoot <= 0 else overshoot + SPARED / 2  # a value of 0 ends the search

    least, most = math.log(SMALLEST_Z), math.log(LARGEST_Z)
    before, far, factor = 0.0, 1.2 * excess(0.0), 1.2  # just past the root, because epsilon falls faster than z0 rises
    while excess(far := min(max(far, least), most)) * excess(before) > 0:
        if far == most:
            raise UsageError(f"no z0 up to {LARGEST_Z:g} achieves epsilon {budget.epsilon}: choose fewer epochs")
        if far == least:
            return SMALLEST_Z
        factor *= 2
        before, far = far, far + factor * excess(far)
    log_z0, more = brentq(excess, before, far, xtol=PRECISION), PRECISION
    while excess(log_z0) > 0:
        log_z0, more = log_z0 + more, 2 * more
    return math.exp(log_z0)
