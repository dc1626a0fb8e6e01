"""Privacy loss distributions by dp_accounting: the tight account of Poisson sampling, for those who can wait."""

from __future__ import annotations

from edp_lab.privacy.accountant import Accountant, check_delta, check_loss
from edp_lab.privacy.schedule import Schedule


class PrivacyLossDistribution(Accountant):
    """Numerical composition of discretised privacy losses, rounded pessimistically by dp_accounting.

    Formal guarantee: an upper bound for add/remove neighbours under Poisson sampling, some 1e-4 above the truth per
    unit of epsilon; a few hundred different releases take seconds.
    """

    method = "privacy loss distributions (dp_accounting)"

    def __init__(self, schedule: Schedule, interval: float = 1e-4) -> None:
        from dp_accounting.pld import PLDAccountant

        super().__init__(schedule)
        self.accountant = PLDAccountant(value_discretization_interval=interval)
        if len(schedule.counts):
            self.accountant.compose(schedule.events())

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return max(0.0, float(self.accountant.get_epsilon(delta)))

    def delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        return min(1.0, max(0.0, float(self.accountant.get_delta(epsilon))))
