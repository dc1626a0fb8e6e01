"""One interface for accountants: from a schedule of releases to epsilon, delta and what an attacker can reach.

`GaussianDP` is exact where everyone takes part in every release, `RenyiDP` bounds Poisson sampling. zCDP gives the
epsilon that the paper claims; tight under Poisson sampling is `edp_lab.privacy.loss_distribution`. Everywhere, delta
outside (0, 1) and an epsilon, mu or rho that is negative or NaN raise `UsageError`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from edp_lab.errors import UsageError
from edp_lab.privacy.mechanism import Schedule


class Accountant(ABC):
    """What a schedule of Gaussian releases guarantees against an adversary who sees all of them.

    Formal guarantee: for neighbours under the adjacency by whose sensitivity the schedule's noise was divided, and
    secret fresh noise, the composed releases are (epsilon(delta), delta)-DP for every delta, and (epsilon,
    delta(epsilon))-DP for every epsilon. Both are upper bounds; how tight they are depends on the accountant.
    """

    method: ClassVar[str]

    def __init__(self, schedule: Schedule) -> None:
        """Raises UsageError where this accountant cannot judge such a schedule."""
        self.schedule = schedule

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The smallest delta it can vouch for at `epsilon`, in [0, 1]; 0 for an empty schedule, or below 5e-324."""

    def log_delta(self, epsilon: float) -> float:
        """ln delta(epsilon); -inf where that is 0."""
        delta = self.delta(epsilon)
        return math.log(delta) if delta else -math.inf

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon it can vouch for at `delta`; 0 for an empty schedule, inf where there is no bound.

        Found by bisection of `log_delta` and rounded up, unless an accountant has a formula.
        """
        check_delta(delta)
        target = math.log(delta)
        if self.log_delta(0.0) <= target:
            return 0.0
        low, high = 0.0, 1.0
        while not self.log_delta(high) <= target:  # so it is from here on, whatever the curve's shape; NaN never is
            low, high = high, 2 * high
            if high > 1e300:
                return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.log_delta(middle) <= target else (middle, high)
        return high

    def best_tpr(self, fpr: np.ndarray) -> np.ndarray:
        """The most true positives any membership attack reaches at these false-positive rates: (F) -> (F).

        1 minus the trade-off curve f(fpr) of Dong, Roth and Su 2022, from (epsilon, delta) pairs (proposition 2.5):
        f(x) >= max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta - x)) for each of them.
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
        """The largest area under the ROC curve that any membership attack reaches; 0.5 is guessing.

        An upper sum over a grid, so never less than the area.
        """
        fpr = np.unique(np.concatenate([[0.0], np.logspace(-12, 0, 3000), np.linspace(0, 1, 3000)]))
        return min(1.0, float(np.sum(np.diff(fpr) * self.best_tpr(fpr)[1:])))


def check_delta(delta: float) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise UsageError(
            f"delta is {delta}: it must lie between {SMALLEST_DELTA:g} and 1 (well below 1/n, such as n^-1.1)"
        )


def check_loss(name: str, value: float) -> None:
    if not value >= 0:
        raise UsageError(f"{name} is {value}: a privacy loss must be 0 or more")


def check_rates(rates: np.ndarray) -> np.ndarray:
    rates = np.asarray(rates, float)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise UsageError("a false-positive rate must lie between 0 and 1")
    return rates


def check_everyone(schedule: Schedule, accountant: str) -> None:
    if schedule.sampling_rate != 1:
        raise UsageError(f"{accountant} has no Poisson sampling: take Renyi DP or privacy loss distributions")


# ---- Gaussian differential privacy -----------------------------------------------------------------------------------
# With disjoint batches every utterance takes part in one Gaussian release per epoch, so T epochs with effective
# noise multipliers z_0 ... z_{T-1} are exactly mu-GDP with mu^2 = sum_t 1/z_t^2 (Dong, Roth and Su 2022,
# corollary 3.3), whatever the decay. Epsilons reach 1e24 for the paper's settings, so everything is computed in
# logarithms.

SMALLEST_DELTA = 1e-300  # below, floats lose digits
GDP_ROUNDING = 2.0**-52  # relative spacing of floats


class GaussianDP(Accountant):
    """Exact: the composition *is* one Gaussian release with parameter mu; rounded up. UsageError: Poisson sampling."""

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
    """epsilon(delta) of a mu-GDP mechanism, rounded up; 0 where delta alone covers it, inf for mu = inf.

    Reference values (delta 1e-5): mu 1 -> 4.38, 2 -> 10.00, 4 -> 24.38.
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
    slack = (16 + min(t * t, 1500.0)) * GDP_ROUNDING * float(ndtr(-t))
    if t > 0:
        return bell * (float(erfcx(t / root2)) - beyond) / 2 + slack
    return float(ndtr(-t)) - bell * beyond / 2 + slack


# ---- Renyi differential privacy --------------------------------------------------------------------------------------
# With a noise multiplier that decays there are as many different releases as epochs, and a library that treats them one
# by one takes seconds: too slow behind a slider. Here the moments of all of them come from one product of arrays.

FRACTIONS = np.arange(11, 110) / 10.0  # orders 1.1 to 10.9
WHOLE = np.array([*range(11, 64), 128, 256, 512, 1024])
ORDERS = np.concatenate([FRACTIONS, WHOLE])  # dp_accounting's default orders
TAIL = 10.0  # standard deviations beyond the outermost peak; with orders below 11 the rest is under 1e-19 of the moment
SMALLEST_SAMPLED_Z = 1e-6  # below, sampling is not worth accounting for
SMALLEST_Z = 0.05  # below, the quadrature would need thousands of nodes
CHUNK = 100_000  # numbers held at once: they stay in the processor's cache
RDP_ROUNDING = 5e-14  # of a log moment; the error of quadrature and summation is below that


class RenyiDP(Accountant):
    """RDP of each release, added up, converted by proposition 12 of Canonne, Kamath and Steinke 2020.

    Formal guarantee: an upper bound for add/remove (and zero-out) neighbours under Poisson sampling; without sampling
    for every adjacency. Typically 5 to 30 % above the truth, more at small epsilon.
    """

    method = "Renyi DP"

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        moments = log_moments(schedule.noise_multipliers, schedule.sampling_rate) @ schedule.counts.astype(float)
        self.rdp = moments / (ORDERS - 1) * (1 + 1e-12)  # (A)

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(self.rdp, delta)

    def delta(self, epsilon: float) -> float:
        return math.exp(self.log_delta(epsilon))

    def log_delta(self, epsilon: float) -> float:
        """ln delta(epsilon), where delta itself would underflow; -inf for an empty schedule."""
        check_loss("epsilon", epsilon)
        if not len(self.schedule.counts):
            return -math.inf
        if np.isnan(self.rdp).any():
            return 0.0
        logs = (ORDERS - 1) * (self.rdp - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
        variation = 0.5 * np.log(-np.expm1(-self.rdp))
        return min(0.0, float(variation.min()), float(logs.min()))


class GroupRenyiDP(RenyiDP):
    """Someone with `size` utterances, each sampled on its own, by group privacy: sound, not tight.

    (epsilon, delta)-DP for one utterance is (k epsilon, delta (1 + e^epsilon + ... + e^((k-1) epsilon)))-DP for k
    (Vadhan 2017, lemma 2.2). Nor is it more than if all took part in every release (divergences are convex, and a
    release is a mixture over who takes part): `GaussianDP.group`, exact without sampling. The smaller one holds.
    """

    method = "group privacy, by Renyi DP or the closed form"

    def __init__(self, schedule: Schedule, size: int) -> None:
        super().__init__(schedule)
        self.size = size

    def log_delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        each = epsilon / self.size
        # The sum of e^(i each) for i < k is e^((k-1) each) times this one:
        falling = math.expm1(-epsilon) / math.expm1(-each) if each > 1e-12 else self.size
        apart = super().log_delta(each) + (self.size - 1) * each + math.log(falling) + 1e-9
        together = gdp_delta(self.size * self.schedule.mu, epsilon)
        return min(0.0, apart, math.log(together) if together else -math.inf)

    epsilon = Accountant.epsilon  # the formula of RenyiDP is for one utterance


def rdp_epsilon(rdp: np.ndarray, delta: float) -> float:
    """epsilon(delta) from the RDP at `ORDERS` (A), the best order taken; 0 where delta alone covers it."""
    check_delta(delta)
    if np.isnan(rdp).any():
        return math.inf
    if (delta**2 + np.expm1(-rdp) >= 0).any():  # delta <= sqrt(1 - e^-KL) covers it (Bretagnolle and Huber)
        return 0.0
    bounds = rdp + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def log_moments(z: np.ndarray, q: float) -> np.ndarray:
    """log E[(1 - q + q e^((2x-1)/(2 z^2)))^a] for x ~ N(0, z^2), every order a and rising z: (K) -> (A, K), rounded up.

    It is (a - 1) times the RDP of one Poisson-sampled Gaussian release (Mironov, Talwar and Zhang 2019, section 3,
    who show that this direction of the divergence is the larger one).
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
    return np.minimum(sampled, everyone)  # sampling never costs more


def _by_binomials(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """Whole orders: the binomial theorem, sum_j C(a,j) (1-q)^(a-j) q^j e^((j^2-j)/(2 z^2)), all terms positive."""
    half, few = 1 / (2 * z**2), orders < 64
    rows = []
    for some in (*np.array_split(orders[few], 4), *orders[~few, None]):  # of similar size: little of a table is empty
        j = np.arange(some[-1] + 1.0)
        weights = _log_binomials(*some.tolist()) + (some[:, None] - j) * math.log1p(-q) + j * math.log(q)
        rows.append(log_sum_exp(weights[:, :, None] + (j * j - j)[:, None] * half, axis=1))
    largest = orders[:, None] * (
        (orders[:, None] - 1) * half - math.log(q) - math.log1p(-q)
    )  # of what cancels in an exponent
    return np.concatenate(rows) + 4 * GDP_ROUNDING * largest


@cache
def _log_binomials(*orders: int) -> np.ndarray:
    """ln C(a, j) for rising orders a and j = 0 ... the last, to the last digit: ln Gamma would lose some."""
    return np.array(
        [[math.log(math.comb(a, j)) if j <= a else -math.inf for j in range(orders[-1] + 1)] for a in orders]
    )


def _by_quadrature(orders: np.ndarray, z: np.ndarray, q: float) -> np.ndarray:
    """Any order below 11: the trapezoidal rule, which is exponentially accurate for this integrand.

    In s = x/z the integrand is analytic for |Im s| < pi z, where its modulus is at most e^(Im(s)^2 / 2) times its
    value at Re s. With step h = min(z, 1)/2 the relative error is therefore below 2 e^(d^2/2 - 2 pi d / h) for
    d = pi min(z, 1): under 1e-14. Below `SMALLEST_Z` a convex bound takes over.
    """
    result = np.empty((len(orders), len(z)))
    small = z < SMALLEST_Z
    whole = np.arange(1, math.ceil(orders.max()) + 1)
    at = _by_binomials(whole, z[small], q)  # a log moment is convex in its order: the chord between whole ones is above
    below = np.floor(orders).astype(int)
    share = (orders - below)[:, None]
    result[:, small] = (1 - share) * at[below - 1] + share * at[np.minimum(below, len(whole) - 1)]
    places = np.flatnonzero(~small)
    while len(places):
        step = min(float(z[places[0]]), 1.0) / 2  # z rises: the first needs the finest grid and the widest range
        s = step * np.arange((orders.max() / z[places[0]] + 2 * TAIL) / step + 1) - TAIL  # arange's own steps drift
        now, places = np.split(places, [max(1, CHUNK // (len(orders) * len(s)))])
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + s / z[now, None] - 1 / (2 * z[now, None] ** 2))  # (k, S)
        density = -s * s / 2 + math.log(step / math.sqrt(2 * math.pi))
        result[:, now] = log_sum_exp(orders[:, None, None] * ratio + density, axis=2)
    return result


def log_sum_exp(x: np.ndarray, axis: int) -> np.ndarray:
    """As scipy's, in a tenth of the time for small arrays; each sum has a finite term."""
    peak = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - peak).sum(axis=axis)) + peak.squeeze(axis)


# ---- Zero-concentrated differential privacy --------------------------------------------------------------------------
# As the paper uses it (Yu et al. 2019): kept for reproduction, and marked as the claim.


class ReshufflingZCDP:
    """One Gaussian release per epoch: rho = sum 1/(2 z^2), eps = rho + 2 sqrt(rho ln(1/delta)).

    A valid upper bound (Bun and Steinke 2016, propositions 1.3 and 1.6) if z is noise over *true* sensitivity. The
    paper puts the printed z in, which is where its claim fails.
    """

    method = "zCDP, random reshuffling (Yu et al. 2019)"

    def __init__(self, schedule: Schedule) -> None:
        check_everyone(schedule, "zCDP under random reshuffling")
        self.schedule = schedule
        self.rho = schedule.mu * schedule.mu / 2  # inf where it overflows

    def epsilon(self, delta: float) -> float:
        return zcdp_epsilon(self.rho, delta)


class SamplingZCDP:
    """Yu's bound for random sampling at rate q: rho = sum q^2 / z^2. A heuristic by its authors' own words.

    Valid, if at all, for orders up to u = z^2 ln(1/(q z)) + 1 (the least over the releases), and only where z >= 1 and
    q < 1/(16 z): elsewhere it raises UsageError. No formal guarantee: never shown as an epsilon that holds.
    """

    method = "zCDP, random sampling (Yu et al. 2019), heuristic"

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        z, q = schedule.noise_multipliers, schedule.sampling_rate
        beyond = z[(z < 1) | (q >= 1 / (16 * z))]
        if len(beyond):
            worst = float(beyond[0])
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


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The conversion the paper uses (Bun and Steinke 2016): eps = rho + 2 sqrt(rho ln(1/delta))."""
    check_loss("rho", rho)
    check_delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
