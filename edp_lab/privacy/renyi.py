"""Renyi differential privacy of Poisson-sampled Gaussian releases, vectorised over orders and noise multipliers.

With a noise multiplier that decays from epoch to epoch there are as many different releases as epochs, and a library
that treats them one by one takes seconds: too slow behind a slider. Here the moments of all orders and releases come
from one product of arrays.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from edp_lab.privacy.accountant import Accountant, check_delta, check_loss
from edp_lab.privacy.schedule import Schedule

FRACTIONS = np.arange(11, 110) / 10.0  # orders 1.1 to 10.9
WHOLE = np.array([*range(11, 64), 128, 256, 512, 1024])
ORDERS = np.concatenate([FRACTIONS, WHOLE])  # dp_accounting's default orders
TAIL = 10.0  # standard deviations beyond the outermost peak; with orders below 11 the rest is under 1e-19 of the moment
SMALLEST_Z = 0.05  # below, the quadrature would need thousands of nodes
CHUNK = 100_000  # numbers held at once: they stay in the processor's cache
ROUNDING = 1e-14  # of a log moment; the error of quadrature and summation is below that


class RenyiDP(Accountant):
    """RDP of each release, added up, converted by proposition 12 of Canonne, Kamath and Steinke 2020.

    Formal guarantee: an upper bound for add/remove (and zero-out) neighbours under Poisson sampling; without sampling
    for every adjacency. Typically some percent above the truth, more at small epsilon.
    """

    method = "Renyi DP"

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        moments = log_moments(schedule.noise_multipliers, schedule.sampling_rate) @ schedule.counts.astype(float)
        self.rdp = moments / (ORDERS - 1) * (1 + 1e-12)  # (A)

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(self.rdp, delta)

    def delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        if not len(self.schedule.counts):
            return 0.0
        logs = (ORDERS - 1) * (self.rdp - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
        variation = float(np.sqrt(-np.expm1(-self.rdp)).min())
        return min(1.0, variation, math.exp(min(0.0, float(logs.min()))))


def rdp_epsilon(rdp: np.ndarray, delta: float) -> float:
    """epsilon(delta) from the RDP at `ORDERS` (A), the best order taken; 0 where delta alone covers it.

    Raises:
        UsageError: delta outside (0, 1).
    """
    check_delta(delta)
    if (delta**2 + np.expm1(-rdp) >= 0).any():  # delta <= sqrt(1 - e^-KL) covers it (Bretagnolle and Huber)
        return 0.0
    bounds = rdp + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def log_moments(z: np.ndarray, q: float) -> np.ndarray:
    """log E[(1 - q + q e^((2x-1)/(2 z^2)))^a] for x ~ N(0, z^2) and every order a: (K) -> (A, K), rounded up.

    It is (a - 1) times the RDP of one Poisson-sampled Gaussian release (Mironov, Talwar and Zhang 2019, section 3,
    who show that this direction of the divergence is the larger one).
    """
    if q == 1:
        return ORDERS[:, None] * (ORDERS[:, None] - 1) / (2 * z**2)
    return np.concatenate([_by_quadrature(FRACTIONS, z, q), _by_binomials(WHOLE, z, q)]) * (1 + 1e-12) + ROUNDING


def _by_binomials(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """Whole orders: the binomial theorem, sum_j C(a,j) (1-q)^(a-j) q^j e^((j^2-j)/(2 z^2)), all terms positive."""
    half = 1 / (2 * z**2)
    rows = []
    for order in orders.tolist():
        j = np.arange(order + 1.0)
        weights = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        weights += (order - j) * math.log1p(-q) + j * math.log(q)
        rows.append(_log_sum_exp(weights[:, None] + (j * j - j)[:, None] * half, axis=0))
    return np.array(rows)


def _by_quadrature(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """Any order below 11: the trapezoidal rule, which is exponentially accurate for this integrand.

    In s = x/z the integrand is analytic for |Im s| < pi z, where its modulus is at most e^(Im(s)^2 / 2) times its
    value at Re s. With step h = min(z, 1)/2 the relative error is therefore below 2 e^(d^2/2 - 2 pi d / h) for
    d = pi min(z, 1): under 1e-14. Below `SMALLEST_Z` a convex bound takes over.
    """
    result = np.empty((len(orders), len(z)))
    small = z < SMALLEST_Z
    result[:, small] = _between_whole_orders(orders, z[small], q)
    places = np.flatnonzero(~small)
    while len(places):
        step = min(float(z[places[0]]), 1.0) / 2  # z rises: the first needs the finest grid and the widest range
        s = np.arange(-TAIL, orders.max() / z[places[0]] + TAIL + step, step)
        now, places = np.split(places, [max(1, CHUNK // (len(orders) * len(s)))])
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + s / z[now, None] - 1 / (2 * z[now, None] ** 2))  # (k, S)
        density = -s * s / 2 + math.log(step / math.sqrt(2 * math.pi))
        result[:, now] = _log_sum_exp(orders[:, None, None] * ratio + density, axis=2)
    return result


def _log_sum_exp(x: np.ndarray, axis: int) -> np.ndarray:
    peak = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - peak).sum(axis=axis)) + peak.squeeze(axis)


def _between_whole_orders(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """An upper bound: a log moment is convex in its order, so the chord between whole orders lies above it."""
    whole = np.arange(1, math.ceil(orders.max()) + 1)
    at = _by_binomials(whole, z, q)
    below = np.floor(orders).astype(int)
    share = (orders - below)[:, None]
    return (1 - share) * at[below - 1] + share * at[np.minimum(below, len(whole) - 1)]
