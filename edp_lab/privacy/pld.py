"""Privacy loss distributions by dp_accounting: the tight account of Poisson sampling, for those who can wait."""

from __future__ import annotations

import math

import numpy as np

from edp_lab.privacy.accountant import Accountant, check_delta, check_loss
from edp_lab.privacy.noise_schedule import Schedule
from edp_lab.privacy.renyi import RenyiDP

ROUNDING = 1e-15  # of delta, for each release: a Fourier transform to that power loses about a tenth of it


class PrivacyLossDistribution(Accountant):
    """Numerical composition of discretised privacy losses, rounded pessimistically by dp_accounting.

    Formal guarantee: an upper bound for add/remove neighbours under Poisson sampling, some 1e-4 above the truth per
    unit of epsilon; a few hundred different releases take seconds. What floating-point numbers may have lost of delta
    is added to it, and where Renyi DP gives less (tiny delta, millions of releases), that is what holds.
    """

    method = "privacy loss distributions (dp_accounting)"

    def __init__(self, schedule: Schedule, interval: float | None = None) -> None:
        """`interval`: the grid width of losses; by default 1e-4, wider where epsilon is in the hundreds."""
        from dp_accounting.pld import PLDAccountant

        super().__init__(schedule)
        self._renyi = RenyiDP(schedule)
        if interval is None:
            interval = max(1e-4, self._renyi.epsilon(1e-10) / 1e6)
        self.accountant = PLDAccountant(value_discretization_interval=interval)
        if len(schedule.counts):
            self.accountant.compose(schedule.events())
        self._lost = ROUNDING * float(np.sum(schedule.counts))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        renyi = self._renyi.epsilon(delta)
        if delta <= 2 * self._lost:
            return renyi
        epsilon = float(self.accountant.get_epsilon(delta - self._lost))
        return renyi if math.isnan(epsilon) else min(renyi, max(0.0, epsilon))

    def delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        found = max(0.0, float(self.accountant.get_delta(epsilon))) + self._lost
        return min(found, self._renyi.delta(epsilon))
