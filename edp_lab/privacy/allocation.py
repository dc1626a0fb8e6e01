"""Random allocation ("balls in bins"): every pass puts each utterance into one of t batches, by a chance of its own.

Between a shuffled pass, which hides nothing in the worst case, and Poisson sampling, whose number of occurrences is
itself left to chance. As utterances choose independently, adding or removing one moves no other. A batch that is drawn
once for all passes, as jax_privacy's `BallsInBinsSampling` does, hides far less: see `edp_lab.privacy.check`.

Formal guarantee. At noise multiplier z, a pass is dominated, for one utterance added or removed, by

    P = (1/t) sum_i N(e_i, z^2 I)    against    Q = N(0, z^2 I)      in t dimensions,

whatever batches, gradients and earlier passes are (Chua et al. 2024, arXiv 2412.16802). With Y_i = e^((2 x_i - 1) / (2
z^2)) and L the mean of the Y_i, the moments of both directions are those of L under Q:

* removed, E[L^a]: a polynomial, whose multinomial terms are summed as the a-th coefficient of a power series to the
  power t (Feldman and Shenfeld 2025, arXiv 2502.08202, for whole a, as a sum over partitions);
* added, E[L^-s] = 1/Gamma(s) int u^(s-1) phi(u/t)^t du with phi(v) = E[e^(-v Y)], a = s + 1: two trapezoidal rules, in
  ln u and in x, each of which is exponentially accurate here.

RDP of passes adds up. Orders between whole ones lie on chords, as a log moment is convex in its order.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import bdtr, bdtrc, gammaln, log_ndtr

from edp_lab.errors import check_whole
from edp_lab.privacy.accountants import ORDERS, GaussianDP, RenyiDP, check_everyone, gdp_epsilon, log_sum_exp
from edp_lab.privacy.mechanism import Schedule

MOST_BATCHES = 10_000
SMALLEST_TAIL = 1e-290  # of a probability: smaller floats lose digits
SMALLEST_Z = 0.4  # below, allocation hides next to nothing: accounted for as none
ENDS = np.array([*range(1, 65), 128])  # whole orders, between which log moments lie below chords
STEP = 0.07  # in ln u
TAIL, FAR = 10.0, 20.0  # standard deviations
NEGLIGIBLE = 45.0  # e^-45 of the peak


class RandomAllocation(RenyiDP):
    """RDP of passes under random allocation, or the closed form without it where that is less.

    Formal guarantee: an upper bound for one utterance added, removed or zeroed out.

    Args:
        schedule: a release for each pass, as with disjoint batches.
        batches: t, among how many batches of a pass an utterance is allotted.
    """

    method = "Renyi DP, random allocation"

    def __init__(self, schedule: Schedule, batches: int) -> None:
        check_everyone(schedule, "random allocation")
        self.schedule, self.known = schedule, GaussianDP(schedule)
        check_whole("number of batches", batches, 1, MOST_BATCHES)
        columns = [_log_moments(z, int(batches)) for z in schedule.noise_multipliers.tolist()]
        moments = np.stack(columns, axis=1) if columns else np.zeros((len(ORDERS), 0))
        self.rdp = moments @ schedule.counts.astype(float) / (ORDERS - 1) * (1 + 1e-12)

    def epsilon(self, delta: float) -> float:
        return min(super().epsilon(delta), self.known.epsilon(delta))

    def log_delta(self, epsilon: float) -> float:
        return min(super().log_delta(epsilon), self.known.log_delta(epsilon))


def allocation_at_least(noise_multiplier: float, batches: int, passes: int, delta: float) -> float:
    """An epsilon that `passes` passes exceed: no smaller one holds at `delta`, whoever proves it.

    From two attackers who know all the rest. One adds up all steps: a Gaussian shift. The other counts the passes whose
    largest step exceeds c, with probability p in a pass with the utterance, q without it: from the tails P and Q of
    that count, epsilon >= ln((P - delta) / Q), for every c and tail; the best of a grid is taken.
    """
    check_whole("number of batches", batches, 1, MOST_BATCHES)
    total = gdp_epsilon(math.sqrt(passes / batches) / noise_multiplier, delta)
    c = np.linspace(-1, 1 + 6 * noise_multiplier, 80)[:, None]
    others = (batches - 1) * log_ndtr(c / noise_multiplier)
    p, q = (-np.expm1(others + log_ndtr((c - pull) / noise_multiplier)) for pull in (1.0, 0.0))
    count = np.unique(np.geomspace(1, passes, 30).round().astype(int))
    best = 0.0
    for member, other in (
        (bdtrc(count - 1, passes, p), bdtrc(count - 1, passes, q)),
        (bdtr(passes - count, passes, q), bdtr(passes - count, passes, p)),
    ):
        seen = (member > delta) & (other > SMALLEST_TAIL)
        best = max(best, float((np.log(member[seen] - delta) - np.log(other[seen])).max(initial=0.0)))
    return max(total, best)


def shuffled_at_least(noise_multiplier: float, batches: int, passes: int, delta: float) -> float:
    """An epsilon that `passes` shuffled passes exceed: no smaller one holds at `delta`, whoever proves it (zero-out).

    Take a corpus in which every other utterance pulls by -C and ours by +C. Each batch's sum, less what it would be
    with -C throughout, then is noise, but for our batch: 2C with the utterance, C where its slot contributes nothing.
    An attacker who only asks whether the largest of these sums exceeds c is right with probabilities P and Q, so
    epsilon >= ln((P - delta) / Q) for every c; the best of a grid is taken.
    Source: the lower bound of Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024 (arXiv 2403.17673), section
    3, for one pass.
    """
    c = np.linspace(0, 2 + 12 * noise_multiplier, 400)
    others = (batches - 1) * log_ndtr(c / noise_multiplier)
    p, q = (-np.expm1(passes * (others + log_ndtr((c - pull) / noise_multiplier))) for pull in (2.0, 1.0))
    seen = (p > delta) & (q > SMALLEST_TAIL)
    return float((np.log(p[seen] - delta) - np.log(q[seen])).max(initial=0.0))


@lru_cache(maxsize=4096)
def _log_moments(z: float, batches: int) -> np.ndarray:
    """The larger log moment of the two directions for one pass, at `ORDERS`: (A); beyond `ENDS` without allocation."""
    known = ORDERS * (ORDERS - 1) / (2 * z * z)
    if z < SMALLEST_Z or batches == 1:
        return known
    ends = ENDS if z >= 1 else ENDS[:64]  # little noise makes high orders useless, and slow
    at = np.maximum(_removed(z, batches, ends), _added(z, batches, ends))
    rounding = 2e-14 * (1 + ends * math.log(batches) + gammaln(ends + 1)) + 1e-15 * batches
    at = np.where(ends > 1, at * (1 + 1e-12) + rounding, 0.0)  # of order 1, E[L] = 1
    return np.minimum(known, np.where(ends[-1] >= ORDERS, np.interp(ORDERS, ends, at), np.inf))


def _removed(z: float, batches: int, orders: np.ndarray) -> np.ndarray:
    """ln E[L^a] by order: a! t^-a times the a-th coefficient of (sum_j y^j e^((j^2 - j)/(2 z^2)) / j!)^t."""
    j = np.arange(orders[-1] + 1.0)
    square = (j * j - j) / (2 * z * z) - gammaln(j + 1)
    power, rest = np.where(j == 0, 0.0, -np.inf), batches
    while rest:  # by repeated squaring; all terms are positive
        power = _product(power, square) if rest % 2 else power
        rest //= 2
        square = _product(square, square) if rest else square
    return (power + gammaln(j + 1) - j * math.log(batches))[orders]


def _product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of two power series, cut off where they end, in logarithms."""
    padded = np.concatenate([np.full(len(one) - 1, -np.inf), other])
    return log_sum_exp(one[:, None] + sliding_window_view(padded, len(one))[::-1], axis=0)


def _added(z: float, batches: int, orders: np.ndarray) -> np.ndarray:
    """ln E[L^-s] by order s + 1; 0 for order 1.

    Where s > `FAR` z t, the quadrature would need densities that are no floats: there L is bounded by the geometric
    mean of the Y_i (Feldman and Shenfeld 2025), which is nearly exact so far out.

    Errors, relative: of phi at most e^(d^2/2 - 2 pi d/h) phi(v cos(d/z)) / phi(v) for each d < pi z / 2, of the outer
    integral, analytic in w = ln u, at most (cos d)^-s e^(-2 pi d/h) for each d < pi / 2; below e^-30 with steps h of
    min(z, 1)/8 and `STEP`.
    """
    s = (orders[orders > 1] - 1).astype(float)
    geometric = s / (2 * z * z) + s * s / (2 * batches * z * z)
    near = s <= FAR * z * batches
    step = min(z, 1.0) / 8
    x = np.arange(-TAIL - FAR, TAIL + step, step)  # all Y_i about e^(-s / (z t)) as large matter most
    weight, y = np.exp(-x * x / 2), np.exp(x / z - 1 / (2 * z * z))
    weight /= weight.sum()
    sums, peak, w = np.full(len(s), -np.inf), np.full(len(s), -np.inf), -NEGLIGIBLE
    while near.any():
        now = w + STEP * np.arange(256)
        phi = np.exp(-np.exp(now)[:, None] / batches * y) @ weight
        with np.errstate(divide="ignore"):
            parts = s[:, None] * now + batches * np.log(phi)
        sums, peak = np.logaddexp(sums, log_sum_exp(parts, axis=1)), np.maximum(peak, parts.max(axis=1))
        w = now[-1] + STEP
        if w > 0 and (parts[near, -1] < peak[near] - NEGLIGIBLE).all():
            break
    exact = sums + math.log(STEP) - gammaln(s)
    return np.concatenate([[0.0], np.where(near, exact, geometric)])
