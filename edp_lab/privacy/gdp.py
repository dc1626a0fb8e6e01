"""Gaussian differential privacy in closed form, and the common interface of accountants (`Accountant`).

It bounds what an adversary who sees every release can learn about one utterance that takes part in all releases. With
disjoint batches, there is one Gaussian release per epoch. T epochs with effective noise multipliers z_0 ... z_{T-1} are
exactly mu-GDP with mu^2 = sum_t 1/z_t^2 (Dong, Roth and Su 2022, corollary 3.3), for any decay. Since epsilon reaches
1e24 for the paper's settings, everything is computed in logarithms. All accountants raise `UsageError` if delta is
outside (0, 1), or if an epsilon, mu or rho is negative or NaN.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from edp_lab.errors import UsageError
from edp_lab.privacy.schedule import Schedule

SMALLEST_DELTA = 1e-300  # below this, floats lose digits
GDP_ROUNDING = 2.0**-52  # relative spacing of floats


class Bound(NamedTuple):
    """A guaranteed epsilon and the name of the accountant that proves it."""

    epsilon: float
    method: str


class Accountant(ABC):
    """Guarantee of a schedule of Gaussian releases against an adversary who sees all releases.

    Formal guarantee: for neighbours under the adjacency to whose sensitivity the noise multipliers are relative, and
    with fresh secret noise, the composed releases are (epsilon(delta), delta)-DP for every delta, and (epsilon,
    delta(epsilon))-DP for every epsilon. Both functions are upper bounds; their tightness depends on the accountant.
    """

    method: ClassVar[str]

    def __init__(self, schedule: Schedule) -> None:
        """Raise UsageError if this accountant does not support the schedule."""
        self.schedule = schedule

    @abstractmethod
    def log_delta(self, epsilon: float) -> float:
        """Return ln of the smallest provable delta, at most 0; -inf for an empty schedule, or if below 5e-324."""

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that is provable at `epsilon`; 0 for an empty schedule, or if below 5e-324."""
        return math.exp(self.log_delta(epsilon))

    def bound(self, delta: float) -> Bound:
        """Return the epsilon at `delta` and the name of the bound that proves it."""
        return Bound(self.epsilon(delta), self.method)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that is provable at `delta`; 0 for an empty schedule, inf without a bound.

        It is found by bisection of `log_delta` and rounded up, unless the accountant has a formula.
        """
        check_delta(delta)
        target = math.log(delta)
        if self.log_delta(0.0) <= target:
            return 0.0
        low, high = 0.0, 1.0
        while not self.log_delta(high) <= target:  # larger epsilons then also meet the target; NaN never does
            low, high = high, 2 * high
            if high > 1e300:
                return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.log_delta(middle) <= target else (middle, high)
        return high

    def best_tpr(self, fpr: np.ndarray) -> np.ndarray:
        """Upper bound on any membership attack's true-positive rate at these false-positive rates: (F) -> (F).

        The bound is 1 - f(fpr), with the trade-off curve f of Dong, Roth and Su 2022. By their proposition 2.5, each
        pair (epsilon, delta) implies f(x) >= max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta - x)).
        """
        fpr = check_rates(fpr)
        best = np.ones_like(fpr)
        negligible = min(self.epsilon(1e-12), 700.0)
        for epsilon in np.linspace(0.0, negligible, 300).tolist():
            delta = self.delta(epsilon)
            one_side, other = delta + math.exp(epsilon) * fpr, 1 - math.exp(-epsilon) * (1 - delta - fpr)
            best = np.minimum(best, np.minimum(one_side, other))
        return np.clip(best, 0.0, 1.0)

    def best_auc(self) -> float:
        """Upper bound on any membership attack's area under the ROC curve; 0.5 for random guessing.

        It is computed as an upper sum over a grid, which is never less than the area.
        """
        fpr = np.unique(np.concatenate([[0.0], np.logspace(-12, 0, 3000), np.linspace(0, 1, 3000)]))
        return min(1.0, float(np.sum(np.diff(fpr) * self.best_tpr(fpr)[1:])))


def check_delta(delta: float) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise UsageError(
            f"delta is {delta}: it must be between {SMALLEST_DELTA:g} and 1 (well below 1/n, such as n^-1.1)"
        )


def check_loss(name: str, value: float) -> None:
    if not value >= 0:
        raise UsageError(f"{name} is {value}: a privacy loss must be 0 or more")


def check_rates(rates: np.ndarray) -> np.ndarray:
    rates = np.asarray(rates, float)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise UsageError("a false-positive rate must be between 0 and 1")
    return rates


def check_everyone(schedule: Schedule, accountant: str) -> None:
    if schedule.sampling_rate != 1:
        raise UsageError(f"{accountant} does not cover Poisson sampling: use Renyi DP or privacy loss distributions")


class GaussianDP(Accountant):
    """Exact accountant without sampling, rounded up: the composition *is* one Gaussian release with parameter mu."""

    method = "Gaussian-DP, closed form"

    def __init__(self, schedule: Schedule) -> None:
        check_everyone(schedule, "the Gaussian-DP closed form")
        super().__init__(schedule)
        self.mu = schedule.mu

    def epsilon(self, delta: float) -> float:
        return gdp_epsilon(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        return gdp_delta(self.mu, epsilon)

    def log_delta(self, epsilon: float) -> float:
        delta = self.delta(epsilon)
        return math.log(delta) if delta else -math.inf

    def best_tpr(self, fpr: np.ndarray) -> np.ndarray:
        fpr = check_rates(fpr)
        return np.ones_like(fpr) if math.isinf(self.mu) else ndtr(ndtri(fpr) + self.mu)

    def best_auc(self) -> float:
        return float(ndtr(self.mu / math.sqrt(2)))

    def group(self, size: int) -> GaussianDP:
        """Return the accountant for a person with `size` utterances: size * mu (Dong et al. 2022, theorem 2.14)."""
        z = self.schedule.noise_multipliers / size
        return GaussianDP(Schedule(z, self.schedule.counts))


def gdp_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), rounded up."""
    check_loss("mu", mu)
    check_loss("epsilon", epsilon)
    if mu == 0 or math.isinf(epsilon / mu):
        return 0.0
    if math.isinf(mu):
        return 1.0
    t = epsilon / mu - mu / 2
    return min(1.0, _delta_at(mu, t - GDP_ROUNDING * (epsilon / mu + mu / 2)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """epsilon(delta) of a mu-GDP mechanism, rounded up; 0 if delta suffices for epsilon 0, inf for mu = inf.

    Reference values (delta 1e-5): mu 1 -> 4.38, 2 -> 10.00, 4 -> 24.38.
    """
    check_loss("mu", mu)
    check_delta(delta)
    if math.isinf(mu):
        return math.inf
    if mu == 0 or _delta_at(mu, -mu / 2) <= delta:
        return 0.0
    # With t = eps/mu - mu/2, both terms have the factor exp(-t^2/2), so nothing overflows.
    low, high = -mu / 2, max(-float(ndtri(delta)), 0.0) + 1e-9
    target = math.log(delta)
    t = brentq(lambda t: math.log(max(_delta_at(mu, t), 5e-324)) - target, low, high, xtol=1e-13, disp=False)
    step = 1e-13 * max(1.0, abs(t))
    while _delta_at(mu, t) > delta:  # the root found may be slightly too small
        t, step = t + step, 2 * step
    return mu * (t + mu / 2) * (1 + 1e-12)


def _delta_at(mu: float, t: float) -> float:
    """delta at eps = mu (t + mu/2): Phi(-t) - exp(-t^2/2) erfcx((t + mu)/sqrt 2) / 2, rounded up.

    For small mu, the two terms cancel. A bound on their rounding is added, so the result is never too small.
    """
    root2 = math.sqrt(2)
    bell, beyond = math.exp(-t * t / 2), float(erfcx((t + mu) / root2))
    slack = (16 + min(t * t, 1500.0)) * GDP_ROUNDING * float(ndtr(-t))
    if t > 0:
        return bell * (float(erfcx(t / root2)) - beyond) / 2 + slack
    return float(ndtr(-t)) - bell * beyond / 2 + slack
