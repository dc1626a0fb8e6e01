"""Gaussian differential privacy: the exact account where every utterance takes part in every release.

With disjoint batches every utterance takes part in one Gaussian release per epoch, so T epochs with effective
noise multipliers z_0 ... z_{T-1} are exactly mu-GDP with mu^2 = sum_t 1/z_t^2 (Dong, Roth and Su 2022,
corollary 3.3), whatever the decay. Epsilons reach 1e24 for the paper's settings, so everything is computed in
logarithms.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from edp_lab.privacy.accountant import Accountant, check_delta, check_everyone, check_loss, check_rates
from edp_lab.privacy.noise_schedule import Schedule

ROUNDING = 2.0**-52  # relative spacing of floats


class GaussianDP(Accountant):
    """Exact: the composition *is* one Gaussian release with parameter mu; rounded up in the last digits.

    Raises:
        UsageError: Poisson sampling.
    """

    method = "Gaussian-DP, closed form"

    def __init__(self, schedule: Schedule) -> None:
        check_everyone(schedule, "the Gaussian-DP closed form")
        super().__init__(schedule)
        self.mu = schedule.mu

    def epsilon(self, delta: float) -> float:
        return gdp_epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        return gdp_delta(self.mu, epsilon)

    def best_tpr(self, fpr: np.ndarray) -> np.ndarray:
        fpr = check_rates(fpr)
        return np.ones_like(fpr) if math.isinf(self.mu) else ndtr(ndtri(fpr) + self.mu)

    def best_auc(self) -> float:
        return float(ndtr(self.mu / math.sqrt(2)))

    def group(self, size: int) -> GaussianDP:
        """The account of someone with `size` utterances: size * mu (Dong et al. 2022, theorem 2.14)."""
        z = self.schedule.noise_multipliers / size
        return GaussianDP(Schedule(z, self.schedule.counts))


def gdp_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), rounded up.

    Raises:
        UsageError: mu or epsilon negative or NaN.
    """
    check_loss("mu", mu)
    check_loss("epsilon", epsilon)
    if mu == 0 or math.isinf(epsilon / mu):
        return 0.0
    if math.isinf(mu):
        return 1.0
    t = epsilon / mu - mu / 2
    return min(1.0, _delta_at(mu, t - ROUNDING * (epsilon / mu + mu / 2)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """epsilon(delta) of a mu-GDP mechanism, rounded up; 0 where delta alone covers it, inf for mu = inf.

    Reference values (delta 1e-5): mu 1 -> 4.38, 2 -> 10.00, 4 -> 24.38.

    Raises:
        UsageError: mu negative or NaN, delta outside (0, 1).
    """
    check_loss("mu", mu)
    check_delta(delta)
    if math.isinf(mu):
        return math.inf
    if mu == 0 or _delta_at(mu, -mu / 2) <= delta:
        return 0.0
    # In t = eps/mu - mu/2 both terms share the factor exp(-t^2/2), so nothing overflows.
    low, high = -mu / 2, max(-float(ndtri(delta)), 0.0) + 1e-9
    target = math.log(delta)
    t = brentq(lambda t: math.log(max(_delta_at(mu, t), 5e-324)) - target, low, high, xtol=1e-13, disp=False)
    step = 1e-13 * max(1.0, abs(t))
    while _delta_at(mu, t) > delta:  # the root may lie a little to the wrong side
        t, step = t + step, 2 * step
    return mu * (t + mu / 2) * (1 + 1e-12)


def _delta_at(mu: float, t: float) -> float:
    """delta at eps = mu (t + mu/2): Phi(-t) - exp(-t^2/2) erfcx((t + mu)/sqrt 2) / 2, rounded up.

    For small mu the two terms cancel, so the bound on their rounding is added: never less than the truth.
    """
    root2 = math.sqrt(2)
    bell, beyond = math.exp(-t * t / 2), float(erfcx((t + mu) / root2))
    slack = (16 + min(t * t, 1500.0)) * ROUNDING * float(ndtr(-t))
    if t > 0:
        return bell * (float(erfcx(t / root2)) - beyond) / 2 + slack
    return float(ndtr(-t)) - bell * beyond / 2 + slack
