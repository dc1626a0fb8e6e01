"""Privacy loss distributions by dp_accounting: the tight account of Poisson sampling, for those who can wait."""

from __future__ import annotations

import math

from edp_lab.privacy.accountant import Accountant, check_delta, check_loss
from edp_lab.privacy.renyi import RenyiDP
from edp_lab.privacy.schedule import Schedule


class PrivacyLossDistribution(Accountant):
    """Numerical composition of discretised privacy losses, rounded pessimistically by dp_accounting.

    Formal guarantee: an upper bound for add/remove neighbours under Poisson sampling, some 1e-4 above the truth per
    unit of epsilon; a few hundred different releases take seconds.
    """

    method = "privacy loss distributions (dp_accounting)"

    def __init__(self, schedule: Schedule, interval: float | None = None) -> None:
        """`interval`: the grid width of losses; by default 1e-4, wider where epsilon is in the hundreds."""
        from dp_accounting.pld import PLDAccountant

        super().__init__(schedule)
        if interval is None:
            interval = max(1e-4, RenyiDP(schedule).epsilon(1e-10) / 1e6)
        self.accountant = PLDAccountant(value_discretization_interval=interval)
        if len(schedule.counts):
            self.accountant.compose(schedule.events())

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        epsilon = float(self.accountant.get_epsilon(delta))
        return math.inf if math.isnan(epsilon) else max(0.0, epsilon)

    def delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        return min(1.0, max(0.0, float(self.accountant.get_delta(epsilon))))
