"""Accountants for Poisson sampling: the privacy loss distribution, and the Rényi bound for groups.

They bound what an adversary who sees every release can learn about one utterance that takes part in each release with
probability q. `PrivacyLossDistribution` composes the losses numerically and rounds up (Zhu, Dong and Wang 2022, arXiv
2106.08567; Doroshenko et al. 2022, arXiv 2207.04380), with the grid and the transforms of `edp_lab.privacy.losses`.
`GroupRenyiDP` bounds the loss of a person with several utterances, each sampled independently, by Rényi DP (Mironov,
Talwar and Zhang 2019, arXiv 1908.10530) and group privacy (Vadhan 2017).
"""

from __future__ import annotations

import math
from functools import cache, cached_property

import numpy as np
from scipy.special import erf

from edp_lab.privacy.gdp import (
    GDP_ROUNDING,
    SMALLEST_DELTA,
    Accountant,
    Bound,
    GaussianDP,
    check_delta,
    check_loss,
    gdp_delta,
    gdp_epsilon,
)
from edp_lab.privacy.losses import HARD, LOOSE, RARE, Losses, log_sum
from edp_lab.privacy.schedule import Schedule

SMALLEST_Z = 0.05  # below this, losses and moments would need too fine a grid
MOST = 1e9  # largest number of releases
RATES_PER_DECADE = 2  # on the ladder of sampling rates
CLOSED_FORM = "closed form, sampling ignored"
SMALLEST_COUNTED_Z = 1e-100  # below this, squares underflow
TABLE = 10.0 ** -np.arange(0.25, 300.1, 0.25)  # deltas, decreasing


class PrivacyLossDistribution(Accountant):
    """Numerical composition of discretised privacy losses, rounded up.

    Formal guarantee: an upper bound for add/remove (and zero-out) neighbours under Poisson sampling, including the
    errors of discretisation, truncation, transform and floating point. It assumes IEEE 754 float64 arithmetic and that
    scipy's normal probabilities are correct to 13 digits. In ordinary settings it is nearly tight.

    If the charge for rounding uses up delta (a tiny rate), or composition is impossible (noise below 0.05, more than
    10^9 releases), the smallest of all other bounds is used, so epsilon stays monotone. A bound for a larger rate is
    valid at rate q, because divergences are jointly convex and the output at rate q is a mixture of the output at the
    larger rate and the output without the utterance. `CountedParticipation` and `RenyiDP` are valid for every setting,
    and increase by construction with q, 1/z, the counts and 1/delta.
    """

    method = "privacy loss distributions"

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        z, counts, q = schedule.noise_multipliers, schedule.counts, schedule.sampling_rate
        self._everyone = GaussianDP(Schedule(z, counts))  # sampling never increases epsilon
        self._possible = q < 1 and len(z) and z[0] >= SMALLEST_Z and counts.sum() <= MOST

    def epsilon(self, delta: float) -> float:
        return self.bound(delta).epsilon

    def bound(self, delta: float) -> Bound:
        check_delta(delta)
        if self.schedule.sampling_rate == 1:
            return self._everyone.bound(delta)
        epsilon, charged = self._composed_epsilon(delta)
        bounds = [Bound(epsilon, self.method), Bound(self._everyone.epsilon(delta), CLOSED_FORM)]
        if charged > LOOSE:
            bounds.append(self._renyi.bound(delta))
        if charged > HARD or self.schedule.sampling_rate < RARE:
            bounds.append(self._counted.bound(delta))
            if charged > HARD and self._possible and min(bounds).epsilon > 0:
                bounds.append(Bound(self._at_larger_rates(delta), f"{self.method}, at a larger sampling rate"))
        return min(bounds, key=lambda bound: bound.epsilon)

    def log_delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        log_delta, charged = self._composed_log_delta(epsilon)
        bounds = [log_delta, self._everyone.log_delta(epsilon)]
        if self.schedule.sampling_rate < 1 and charged > LOOSE:
            bounds.append(self._renyi.log_delta(epsilon))
        if self.schedule.sampling_rate < 1 and not self._possible:
            bounds.append(self._counted.log_delta(epsilon))
        return min(bounds)

    def _composed_epsilon(self, delta: float) -> tuple[float, float]:
        if not self._possible:
            return math.inf, 1.0
        epsilon, charged = self._removed.epsilon(delta)
        if self._added.surely_below(epsilon, math.log(delta)):
            return epsilon, charged
        other, charged_too = self._added.epsilon(delta)
        return max(epsilon, other), max(charged, charged_too)

    def _composed_log_delta(self, epsilon: float) -> tuple[float, float]:
        if not self._possible:
            return 0.0, 1.0
        log_delta, charged = self._removed.log_delta(epsilon)
        if self._added.surely_below(epsilon, log_delta):
            return log_delta, charged
        other, charged_too = self._added.log_delta(epsilon)
        return max(log_delta, other), max(charged, charged_too)

    def _at_larger_rates(self, delta: float) -> float:
        """Return the first computable epsilon on a fixed ladder of rates above q, each of which bounds epsilon at q."""
        z, counts, q = self.schedule.noise_multipliers, self.schedule.counts, self.schedule.sampling_rate
        for power in range(math.floor(RATES_PER_DECADE * math.log10(q)) + 1, 0):
            account = PrivacyLossDistribution(Schedule(z, counts, max(q, 10.0 ** (power / RATES_PER_DECADE))))
            epsilon, charged = account._composed_epsilon(delta)
            if charged < 1:
                return epsilon
        return math.inf

    @cached_property
    def _renyi(self) -> RenyiDP:
        return RenyiDP(self.schedule)

    @cached_property
    def _counted(self) -> CountedParticipation:
        return CountedParticipation(self.schedule)

    @cached_property
    def _removed(self) -> Losses:
        return Losses(self.schedule, removed=True)

    @cached_property
    def _added(self) -> Losses:
        return Losses(self.schedule, removed=False)


class CountedParticipation(Accountant):
    """Bound from the number of releases in which an utterance takes part; nearly tight only if noise is very small.

    Formal guarantee: an upper bound for every schedule under Poisson sampling. With probability 1 - p, the utterance
    takes part in no release, so delta(ln(1 + p (e^x - 1))) <= p delta'(x), where delta' is conditional on taking part
    (Balle, Barthe and Gaboardi 2018, theorem 8). Divergences are jointly convex, so publishing the releases in which it
    takes part can only increase delta'. With S the sum of 1/z^2 over these releases, p delta'(x) <= P[S > s]
    + p gdp_delta(sqrt(s), x) for every s. We use the maximum of S, or the s for which Chernoff's bound, minimised over
    fixed exponents, proves P[S > s] <= delta / 2. Both, and therefore epsilon, increase with q, 1/z, the counts and
    1/delta. Epsilon is 0 if delta is at least the total variation, at most the sum of q (2 Phi(1/(2z)) - 1).
    """

    method = "closed form for the number of releases that sample an utterance"

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        z, counts, q = self.schedule.noise_multipliers, self.schedule.counts, self.schedule.sampling_rate
        if float(counts @ (q * erf(math.sqrt(0.125) / z))) * (1 + 1e-12) <= delta:
            return 0.0
        bounds = [self._amplified(self.schedule.mu, delta)]
        if z[0] >= SMALLEST_COUNTED_Z and delta >= 2 * SMALLEST_DELTA:
            exponents, moments = self._moments
            largest = float(((moments - math.log(delta / 2)) / exponents).min())
            bounds.append(self._amplified(math.sqrt(largest) * (1 + 1e-12), delta / 2))
        return min(bounds)

    def _amplified(self, mu: float, delta: float) -> float:
        """Return ln(1 + p (e^x - 1)) for the x at which the delta of a mu-GDP release is delta / p."""
        counts, q = self.schedule.counts, self.schedule.sampling_rate
        p = min(1.0, -math.expm1(float(counts.sum()) * math.log1p(-q)) * (1 + 1e-12))
        if delta >= p:
            return 0.0
        share = delta / p * (1 - 1e-12)
        x = gdp_epsilon(mu, share) if share >= SMALLEST_DELTA else math.inf
        amplified = math.log1p(p * math.expm1(x)) if x < 700 else x + math.log(p + (1 - p) * math.exp(-x))
        return amplified * (1 + 1e-12)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Exponents t, the relevant powers of 2^(1/4), and ln E[e^(t S)]: (T), (T)."""
        z, counts, q = self.schedule.noise_multipliers, self.schedule.counts, self.schedule.sampling_rate
        low, high = (4 * math.log2(share * z[0] ** 2) for share in (1e-8, 600.0))
        exponents = 2.0 ** (np.arange(math.ceil(low), math.floor(high) + 1) / 4)
        return exponents, np.log1p(q * np.expm1(exponents[:, None] / z**2)) @ counts

    @cached_property
    def _epsilons(self) -> np.ndarray:
        return np.array([self.epsilon(delta) for delta in TABLE.tolist()])

    def log_delta(self, epsilon: float) -> float:
        """Return ln of the smallest sufficient delta in a table, rounded up."""
        check_loss("epsilon", epsilon)
        covered = TABLE[self._epsilons <= epsilon]
        return math.log(float(covered.min())) if len(covered) else 0.0


# ---- Renyi differential privacy --------------------------------------------------------------------------------------
# With decaying noise, every epoch has a different release. A library that treats releases one by one takes seconds,
# which is too slow for a slider. Here, one array product computes the moments of all releases.

FRACTIONS = np.arange(11, 110) / 10.0  # orders 1.1 to 10.9
WHOLE = np.array([*range(11, 64), 128, 256, 512, 1024])
ORDERS = np.concatenate([FRACTIONS, WHOLE])  # dp_accounting's default orders
TAIL = 10.0  # standard deviations beyond the outermost peak; below order 11, the remainder is under 1e-19 of the moment
SMALLEST_SAMPLED_Z = 1e-6  # below this, sampling is not worth accounting for
CHUNK = 100_000  # numbers per chunk, which fit into the processor's cache
RDP_ROUNDING = 5e-14  # bound on the error of a log moment by quadrature and summation


class RenyiDP(Accountant):
    """Sum of the releases' RDP, converted to epsilon by proposition 12 of Canonne, Kamath and Steinke 2020.

    Formal guarantee: an upper bound for add/remove (and zero-out) neighbours under Poisson sampling; without sampling,
    for every adjacency. It is typically 5 to 30 % above the exact value, more at small epsilon.
    """

    method = "Rényi DP"

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        moments = log_moments(schedule.noise_multipliers, schedule.sampling_rate) @ schedule.counts.astype(float)
        self.rdp = moments / (ORDERS - 1) * (1 + 1e-12)  # (A)

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(self.rdp, delta)

    def log_delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        if not len(self.schedule.counts):
            return -math.inf
        if np.isnan(self.rdp).any():
            return 0.0
        logs = (ORDERS - 1) * (self.rdp - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
        variation = 0.5 * np.log(-np.expm1(-self.rdp))
        return min(0.0, float(variation.min()), float(logs.min()))


class GroupRenyiDP(RenyiDP):
    """Group privacy for a person with `size` utterances, each sampled independently: a valid bound, but not tight.

    (epsilon, delta)-DP for one utterance is (k epsilon, delta (1 + e^epsilon + ... + e^((k-1) epsilon)))-DP for k
    (Vadhan 2017, lemma 2.2). The other bound, `GaussianDP.group`, is exact if all k take part in every release. It is
    valid with sampling, because a release is a mixture and divergences are convex. We use the smaller bound.
    """

    method = "group privacy of Rényi DP"

    def __init__(self, schedule: Schedule, size: int) -> None:
        super().__init__(schedule)
        self.size = size

    def log_delta(self, epsilon: float) -> float:
        return min(self._by_renyi(epsilon), self._together(epsilon))

    epsilon = Accountant.epsilon  # RenyiDP's formula is for one utterance

    def bound(self, delta: float) -> Bound:
        epsilon = self.epsilon(delta)
        by_renyi = self._by_renyi(epsilon) <= self._together(epsilon)
        return Bound(epsilon, self.method if by_renyi else CLOSED_FORM)

    def _by_renyi(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        each = epsilon / self.size
        # The sum of e^(i each) for i < k is e^((k-1) each) times `falling`:
        falling = math.expm1(-epsilon) / math.expm1(-each) if each > 1e-12 else self.size
        return min(0.0, super().log_delta(each) + (self.size - 1) * each + math.log(falling) + 1e-9)

    def _together(self, epsilon: float) -> float:
        delta = gdp_delta(self.size * self.schedule.mu, epsilon)
        return math.log(delta) if delta else -math.inf


def rdp_epsilon(rdp: np.ndarray, delta: float) -> float:
    """epsilon(delta) from the RDP at `ORDERS` (A), by the best order; 0 if delta suffices for epsilon 0."""
    check_delta(delta)
    if np.isnan(rdp).any():
        return math.inf
    if (delta**2 + np.expm1(-rdp) >= 0).any():  # total variation <= sqrt(1 - e^-KL) (Bretagnolle and Huber)
        return 0.0
    bounds = rdp + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def log_moments(z: np.ndarray, q: float) -> np.ndarray:
    """log E[(1 - q + q e^((2x-1)/(2 z^2)))^a] for x ~ N(0, z^2), all orders a and rising z: (K) -> (A, K), rounded up.

    This is (a - 1) times the RDP of one Poisson-sampled Gaussian release (Mironov, Talwar and Zhang 2019, section 3;
    they show that this direction of the divergence is the larger one).
    """
    with np.errstate(divide="ignore", over="ignore"):
        everyone = ORDERS[:, None] * (ORDERS[:, None] - 1) / (2 * np.square(z))
    if q == 1:
        return everyone
    sampled = np.full_like(everyone, np.inf)
    usable = np.flatnonzero(z >= SMALLEST_SAMPLED_Z)
    for now in np.array_split(usable, math.ceil(len(usable) / 500)) if len(usable) else []:
        parts = _by_quadrature(FRACTIONS, z[now], q), _by_binomials(WHOLE, z[now], q)
        sampled[:, now] = np.concatenate(parts) * (1 + 1e-12) + RDP_ROUNDING
    return np.minimum(sampled, everyone)  # sampling never increases epsilon


def _by_binomials(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """Integer orders: the binomial theorem, sum_j C(a,j) (1-q)^(a-j) q^j e^((j^2-j)/(2 z^2)), all terms positive."""
    half, few = 1 / (2 * z**2), orders < 64
    rows = []
    for group in (*np.array_split(orders[few], 4), *orders[~few, None]):  # of similar size, for dense tables
        j = np.arange(group[-1] + 1.0)
        weights = _log_binomials(*group.tolist()) + (group[:, None] - j) * math.log1p(-q) + j * math.log(q)
        rows.append(log_sum(weights[:, :, None] + (j * j - j)[:, None] * half, axis=1))
    # bound on cancellation in an exponent
    largest = orders[:, None] * ((orders[:, None] - 1) * half - math.log(q) - math.log1p(-q))
    return np.concatenate(rows) + 4 * GDP_ROUNDING * largest


@cache
def _log_binomials(*orders: int) -> np.ndarray:
    """ln C(a, j) for rising orders a and j = 0 ... the last, to full precision; ln Gamma would lose digits."""
    return np.array(
        [[math.log(math.comb(a, j)) if j <= a else -math.inf for j in range(orders[-1] + 1)] for a in orders]
    )


def _by_quadrature(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """Log moments of any order below 11 by the trapezoidal rule, which is exponentially accurate for this integrand.

    In s = x/z the integrand is analytic for |Im s| < pi z, where its modulus is at most e^(Im(s)^2 / 2) times its
    value at Re s. With step h = min(z, 1)/2 the relative error is therefore below 2 e^(d^2/2 - 2 pi d / h) for
    d = pi min(z, 1): under 1e-14. Below `SMALLEST_Z` we use a bound by convexity.
    """
    result = np.empty((len(orders), len(z)))
    small = z < SMALLEST_Z
    whole = np.arange(1, math.ceil(orders.max()) + 1)
    at = _by_binomials(whole, z[small], q)  # log moments are convex in the order, so chords bound them
    below = np.floor(orders).astype(int)
    share = (orders - below)[:, None]
    result[:, small] = (1 - share) * at[below - 1] + share * at[np.minimum(below, len(whole) - 1)]
    places = np.flatnonzero(~small)
    while len(places):
        step = min(float(z[places[0]]), 1.0) / 2  # the first, smallest z needs the finest grid and widest range
        s = step * np.arange((orders.max() / z[places[0]] + 2 * TAIL) / step + 1) - TAIL  # float steps drift
        now, places = np.split(places, [max(1, CHUNK // (len(orders) * len(s)))])
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + s / z[now, None] - 1 / (2 * z[now, None] ** 2))  # (k, S)
        density = -s * s / 2 + math.log(step / math.sqrt(2 * math.pi))
        result[:, now] = log_sum(orders[:, None, None] * ratio + density, axis=2)
    return result
