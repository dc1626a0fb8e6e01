"""What labels from voting instructors cost: PATE's accounting, of one query and of all.

N. Papernot, M. Abadi, U. Erlingsson, I. Goodfellow, K. Talwar, "Semi-supervised knowledge transfer for deep learning
from private training data", ICLR 2017 (arXiv 1610.05755); N. Papernot, S. Song, I. Mironov, A. Raghunathan, K. Talwar,
U. Erlingsson, "Scalable private learning with PATE", ICLR 2018 (arXiv 1802.08908). `votes` has the votes.

Renyi divergences are arrays over `edp_lab.privacy.renyi.ORDERS` (A). Those that depend on the votes (a "data-dependent
bound") say what holds for these very votes, against any neighbour, and reveal something of them: such an epsilon is
itself private and must not be published. All bounds are rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from edp_lab.errors import UsageError
from edp_lab.privacy import GaussianDP, RenyiDP, Schedule, gdp_epsilon, zcdp_epsilon
from edp_lab.privacy.accountant import check_delta
from edp_lab.privacy.composition import advanced_composition, parallel_composition
from edp_lab.privacy.foundations import ROUND_UP
from edp_lab.privacy.renyi import ORDERS, rdp_epsilon
from edp_lab.three_phase.votes import L1_SENSITIVITY, PRIVATE, Aggregator, Vote

Divergences = NDArray[np.float64]  # (A)
NOT_RELEASABLE = "computed from the private votes, so itself private: not releasable without noise of its own"
SLACK = 1e-14  # of a log moment: rounding where terms of opposite sign nearly cancel


@dataclass(frozen=True)
class VoteAccount:
    """What the labels of all queries cost together, for one training example replaced (its place in the parts stays).

    Attributes:
        queries: put to the vote, answered or not.
        delta: of every epsilon here, except that of one Laplace query, which holds at 0.
        query_epsilon: of one query; inf for a vote without noise, and so are all that follow.
        composed: epsilon of all queries by each way of adding up that is a bound, whatever the votes are.
        epsilon: the least of them: this is the guarantee.
        data_dependent_epsilon: for these votes; see `data_dependent_note`. Never above `epsilon`.
    """

    queries: int
    delta: float
    query_epsilon: float
    composed: dict[str, float]
    epsilon: float
    data_dependent_epsilon: float
    data_dependent_note: str = NOT_RELEASABLE


def account_votes(aggregator: Aggregator, counts: ArrayLike, delta: float) -> VoteAccount:
    """Judge the labels that `aggregator` gave for these counts, (Q, K).

    Formal guarantee: the labels of all queries, and every model and answer computed from them, are (epsilon, delta)-DP
    with respect to one training example, if that example reaches one instructor only, the queries do not depend on the
    training examples, and the noise is secret. A confident vote is charged as if it had answered every query.

    Raises:
        UsageError: counts that are no (Q, K) array, delta outside (0, 1).
    """
    votes = np.asarray(counts)
    if votes.ndim != 2 or votes.shape[1] < 2:
        raise UsageError(f"counts of shape {votes.shape}: give one row for each query and one column for each class")
    check_delta(delta)
    queries = len(votes)
    if aggregator.vote not in PRIVATE:
        cost = math.inf if queries else 0.0
        return VoteAccount(queries, delta, math.inf, {}, cost, cost, f"a {aggregator.vote} vote adds no noise")
    composed = composed_epsilons(aggregator, queries, delta)
    epsilon = min(composed.values())
    dependent = rdp_epsilon(_summed_rdp(aggregator, votes), delta) * ROUND_UP if queries else 0.0
    return VoteAccount(queries, delta, query_epsilon(aggregator, delta), composed, epsilon, min(epsilon, dependent))


def query_epsilon(aggregator: Aggregator, delta: float) -> float:
    """Of one query: 2 / scale for Laplace noise, at delta 0; exact at `delta` for the noised counts otherwise."""
    if aggregator.vote not in PRIVATE:
        return math.inf
    if aggregator.vote is Vote.LAPLACE:
        return L1_SENSITIVITY / aggregator.noise * ROUND_UP
    return gdp_epsilon(_mu(aggregator), delta)


def composed_epsilons(aggregator: Aggregator, queries: int, delta: float) -> dict[str, float]:
    """Epsilon of so many queries at `delta` by each way of adding up, whatever the votes are; each is a bound.

    * Laplace, pure epsilon: the plain sum; advanced composition; zero-concentrated DP with rho = queries epsilon^2 / 2
      (Bun and Steinke 2016, proposition 1.4); Renyi DP (PATE 2017's moments accountant with the better conversion).
    * Gaussian: the labels are computed from counts + noise, one Gaussian release of L2 sensitivity sqrt(2), so mu
      adds up in squares. A confident vote also releases its strongest count, of sensitivity 1.

    Raises:
        UsageError: a vote without noise, fewer than 0 queries, delta outside (0, 1).
    """
    check_delta(delta)
    if aggregator.vote not in PRIVATE or queries < 0:
        raise UsageError(f"{queries} queries of a {aggregator.vote} vote: count from 0, and choose a vote with noise")
    if aggregator.vote is not Vote.LAPLACE:
        return {"Gaussian DP": gdp_epsilon(_mu(aggregator) * math.sqrt(queries) * ROUND_UP, delta)}
    each = query_epsilon(aggregator, delta)
    return {
        "plain sum": queries * each * ROUND_UP,
        "advanced composition": advanced_composition(each, 0.0, queries, delta).epsilon if queries else 0.0,
        "zCDP": zcdp_epsilon(queries * each**2 / 2, delta) * ROUND_UP,
        "Renyi DP": rdp_epsilon(queries * pure_rdp(each), delta) * ROUND_UP,
    }


def pure_rdp(epsilon: float) -> Divergences:
    """The Renyi divergence of an epsilon-DP release: min(order epsilon^2 / 2, epsilon).

    Source: Bun and Steinke 2016, proposition 3.3. PATE 2017's theorem 2 is its first part with epsilon = 2 gamma.
    """
    return np.minimum(ORDERS * epsilon**2 / 2, epsilon) * ROUND_UP


def laplace_log_q(counts: NDArray[Any], scale: float) -> float:
    """ln of a bound on the chance that Laplace noise topples the winner of a vote: (K) -> number.

    The union over the others of (2 + g) / (4 e^g), g = gap to the winner over scale; no more than 1 - 1/K.
    Source: Papernot et al. 2017, lemma 4.
    """
    gaps = _gaps(counts) / scale
    return _capped(np.logaddexp.reduce(np.log1p(gaps / 2) - math.log(2) - gaps), len(counts))


def gaussian_log_q(counts: NDArray[Any], sigma: float) -> float:
    """The same for Gaussian noise: the union over the others of P[N(0, 2 sigma^2) > gap].

    Source: Papernot et al. 2018, proposition 7.
    """
    return _capped(np.logaddexp.reduce(log_ndtr(-_gaps(counts) / (math.sqrt(2) * sigma))), len(counts))


def laplace_rdp(log_q: float, epsilon: float) -> Divergences:
    """Data-dependent Renyi divergence of an epsilon-DP choice that misses its likeliest outcome with chance <= q.

    ln((1 - q) ((1 - q) / (1 - e^epsilon q))^l + q e^(epsilon l)) / l at l = order - 1, for q < 1 / (e^epsilon + 1);
    never more than `pure_rdp`.
    Source: Papernot et al. 2017, theorem 3, with epsilon = 2 gamma.
    """
    bound = pure_rdp(epsilon)
    if log_q >= -np.logaddexp(0.0, epsilon):
        return bound
    moment, stays = ORDERS - 1, _log1mexp(log_q)
    likely = stays + moment * (stays - _log1mexp(log_q + epsilon))
    return _least(bound, np.logaddexp(likely, log_q + moment * epsilon))


def gaussian_rdp(log_q: float, sigma: float) -> Divergences:
    """Data-dependent Renyi divergence of GNMax that misses the winner with chance <= q.

    Never more than order / sigma^2, that of the noised counts. The two higher orders of the theorem are those of
    proposition 10: mu_2 = sigma sqrt(ln(1/q)), mu_1 = mu_2 + 1.
    Source: Papernot et al. 2018, theorem 6 with the conditions of its proof (lemma 9).
    """
    bound = ORDERS / sigma**2 * ROUND_UP
    second = sigma * math.sqrt(-log_q)
    first, rdp_first, rdp_second = second + 1, (second + 1) / sigma**2, second / sigma**2
    if second <= 1 or log_q + rdp_second >= 0:
        return bound
    if log_q > (second - 1) * rdp_second - second * (math.log1p(1 / second) + math.log1p(1 / (second - 1))):
        return bound
    moment, stays = ORDERS - 1, _log1mexp(log_q)
    likely = stays + moment * (stays - _log1mexp((log_q + rdp_second) * (1 - 1 / second)))
    found = _least(bound, np.logaddexp(likely, log_q + moment * (rdp_first - log_q / second)))
    return np.where(first >= ORDERS, found, bound)


def confident_rdp(counts: NDArray[Any], aggregator: Aggregator) -> Divergences:
    """Data-dependent Renyi divergence of one confident query, both of its steps: (K) -> (A).

    Whether it answers is one of two outcomes with known chances, for these counts and for a strongest count that is one
    more or one less; where it answers, `gaussian_rdp` comes on top. Exact in the first step, where PATE 2018 reports
    the expected cost of the second, which is no bound.
    """
    answer = gaussian_rdp(gaussian_log_q(counts, aggregator.noise), aggregator.noise)
    margins = (counts.max() + np.array([0.0, -1.0, 0.0, 1.0]) - aggregator.threshold) / aggregator.threshold_noise
    answers, declines = log_ndtr(margins), log_ndtr(-margins)
    moments = [
        np.logaddexp(
            ORDERS * declines[0] + (1 - ORDERS) * declines[k],
            ORDERS * answers[0] + (1 - ORDERS) * answers[k] + (ORDERS - 1) * answer,
        )
        for k in (1, 2, 3)
    ]
    always = ORDERS * (0.5 / aggregator.threshold_noise**2 + 1 / aggregator.noise**2) * ROUND_UP
    return _least(always, np.max(moments, axis=0))


@dataclass(frozen=True)
class PartitionCost:
    """What training on parts does to the epsilon of DP-SGD or DP-Adam instructors, at one delta.

    Attributes:
        one: epsilon of a single model on all examples.
        each: of one of N instructors, same batch size, noise and epochs: it samples its part N times as densely.
        together: of all N: parallel composition, the maximum.
        claimed: one / N, the thesis' "ten times more private".
    """

    one: float
    each: float
    together: float
    claimed: float


def partition_cost(
    examples: int, instructors: int, batch_size: int, epochs: int, noise_multiplier: float, delta: float
) -> PartitionCost:
    """Evidence on T9, by Renyi DP under Poisson sampling (add/remove) of each part.

    Raises:
        UsageError: parts smaller than a batch, no noise, no epochs, delta outside (0, 1).
    """
    if not 1 <= batch_size <= examples // max(instructors, 1) or instructors < 1 or epochs < 1:
        raise UsageError(
            f"{instructors} parts of {examples} examples, {epochs} epochs in batches of {batch_size}: "
            "give at least one part and one epoch, and parts no smaller than a batch"
        )

    def epsilon(size: int) -> float:
        rate = batch_size / size
        schedule = Schedule(np.array([noise_multiplier]), np.array([epochs * math.ceil(1 / rate)]), rate)
        return (RenyiDP if rate < 1 else GaussianDP)(schedule).epsilon(delta)

    one, each = epsilon(examples), epsilon(examples // instructors)
    together = parallel_composition([(each, delta)] * instructors).epsilon
    return PartitionCost(one, each, together, one / instructors)


def _summed_rdp(aggregator: Aggregator, counts: NDArray[Any]) -> Divergences:
    """Over all queries. The bounds do not care which class has how many votes, so few rows remain."""
    rows, times = np.unique(np.sort(counts, axis=1), axis=0, return_counts=True)
    total = np.zeros(len(ORDERS))
    for row, count in zip(rows, times.tolist(), strict=True):
        total += count * _query_rdp(aggregator, row)
    return total * ROUND_UP


def _query_rdp(aggregator: Aggregator, counts: NDArray[Any]) -> Divergences:
    if aggregator.vote is Vote.LAPLACE:
        return laplace_rdp(laplace_log_q(counts, aggregator.noise), query_epsilon(aggregator, 0.5))
    if aggregator.vote is Vote.CONFIDENT:
        return confident_rdp(counts, aggregator)
    return gaussian_rdp(gaussian_log_q(counts, aggregator.noise), aggregator.noise)


def _mu(aggregator: Aggregator) -> float:
    """Of one query with Gaussian noise: sensitivity over deviation, of all that is released."""
    consensus = 1 / aggregator.threshold_noise if aggregator.vote is Vote.CONFIDENT else 0.0
    return math.hypot(math.sqrt(2) / aggregator.noise, consensus) * ROUND_UP


def _gaps(counts: NDArray[Any]) -> NDArray[np.float64]:
    """How far each class but the winner lies behind it: (K) -> (K - 1)."""
    ordered = np.sort(counts)[::-1].astype(np.float64)
    return ordered[0] - ordered[1:]


def _capped(log_q: Any, classes: int) -> float:
    """The winner is the likeliest label, so another one comes out with a chance of at most 1 - 1/K."""
    return min(float(log_q) + SLACK, math.log1p(-1 / classes))


def _log1mexp(x: Any) -> Any:
    """ln(1 - e^x) for x < 0."""
    return np.where(x > -math.log(2), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def _least(bound: Divergences, log_moment: Divergences) -> Divergences:
    """The smaller of a divergence and of that with this log moment, both rounded up and not below 0."""
    return np.minimum(bound, (np.maximum(log_moment, 0.0) * ROUND_UP + SLACK * ORDERS) / (ORDERS - 1))
