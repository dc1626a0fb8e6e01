"""Zero-concentrated DP as the paper uses it (Yu et al. 2019): kept for reproduction, and marked as the claim."""

from __future__ import annotations

import math

import numpy as np

from edp_lab.errors import UsageError
from edp_lab.privacy.accountant import Accountant, check_delta, check_everyone, check_loss
from edp_lab.privacy.noise_schedule import Schedule


class ReshufflingZCDP(Accountant):
    """One Gaussian release per epoch: rho = sum 1/(2 z^2), eps = rho + 2 sqrt(rho ln(1/delta)).

    A valid upper bound (Bun and Steinke 2016, propositions 1.3 and 1.6) if z is noise over *true* sensitivity. The
    paper puts the printed z in, which is where its claim fails.
    """

    method = "zCDP, random reshuffling (Yu et al. 2019)"

    def __init__(self, schedule: Schedule) -> None:
        check_everyone(schedule, "zCDP under random reshuffling")
        super().__init__(schedule)
        self.rho = schedule.mu * schedule.mu / 2  # inf where it overflows

    def epsilon(self, delta: float) -> float:
        return zcdp_epsilon(self.rho, delta)

    def delta(self, epsilon: float) -> float:
        return zcdp_delta(self.rho, epsilon)


class SamplingZCDP(Accountant):
    """Yu's bound for random sampling at rate q: rho = sum q^2 / z^2. A heuristic by its authors' own words.

    Valid, if at all, for orders up to u = z^2 ln(1/(q z)) + 1 (the least over the releases), and only where z >= 1 and
    q < 1/(16 z): elsewhere refused. No formal guarantee: never shown as an epsilon that holds.

    Raises:
        UsageError: no sampling, or outside that range.
    """

    method = "zCDP, random sampling (Yu et al. 2019), heuristic"

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        z, q = schedule.noise_multipliers, schedule.sampling_rate
        if not ((z >= 1) & (q < 1 / (16 * z))).all():
            worst = float(z[np.argmax(~((z >= 1) & (q < 1 / (16 * z))))])
            raise UsageError(
                f"Yu's random-sampling bound asks for z >= 1 and q < 1/(16 z), here z is {worst:.4g} and q {q:.4g}: "
                "no claim can be made"
            )
        self.rho = float(np.sum(schedule.counts * (q / z) ** 2))
        self.order = float(np.min(z**2 * np.log(1 / (q * z)) + 1)) if len(z) else math.inf

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if self.rho == 0:
            return 0.0
        if math.log(delta) < -self.rho * (self.order - 1) ** 2:
            return self.rho * self.order - math.log(delta) / (self.order - 1)
        return zcdp_epsilon(self.rho, delta)

    def delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        if self.rho == 0:
            return 0.0
        straight = math.exp(min(0.0, (self.order - 1) * (self.rho * self.order - epsilon)))
        best = 1 + (epsilon - self.rho) / (2 * self.rho)  # the order that gives zcdp_delta
        return zcdp_delta(self.rho, epsilon) if best <= self.order else straight


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The conversion the paper uses (Bun and Steinke 2016): eps = rho + 2 sqrt(rho ln(1/delta)).

    Raises:
        UsageError: rho negative or NaN, delta outside (0, 1).
    """
    check_loss("rho", rho)
    check_delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Its inverse: delta = e^(-(eps - rho)^2 / (4 rho)) for eps > rho, else 1."""
    check_loss("rho", rho)
    check_loss("epsilon", epsilon)
    if rho == 0:
        return 0.0
    return math.exp(-((epsilon - rho) ** 2) / (4 * rho)) if epsilon > rho else 1.0
