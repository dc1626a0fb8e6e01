"""PATE: instructors vote on a label, and what that costs, of one query and of all.

Noise is what makes a vote private. One training example changes at most one instructor, so at most one vote moves from
one class to another: the counts of two neighbours differ by 2 in L1 and by sqrt(2) in L2. Predictions of N instructors
for Q queries are (N, Q) labels, their probabilities (N, Q, K), counts (Q, K).

N. Papernot, M. Abadi, U. Erlingsson, I. Goodfellow, K. Talwar, "Semi-supervised knowledge transfer for deep learning
from private training data", ICLR 2017 (arXiv 1610.05755); N. Papernot, S. Song, I. Mironov, A. Raghunathan, K. Talwar,
U. Erlingsson, "Scalable private learning with PATE", ICLR 2018 (arXiv 1802.08908).

Renyi divergences are arrays over `edp_lab.privacy.accountants.ORDERS` (A). Those that depend on the votes (a
"data-dependent bound") say what holds for these very votes, against any neighbour, and reveal something of them: such
an epsilon is itself private and must not be published. All bounds are rounded up. Votes, counts, noise and budgets that
make no sense are refused by `UsageError`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

from edp_lab.errors import UsageError
from edp_lab.privacy import GaussianDP, PrivacyLossDistribution, Schedule, gdp_epsilon, zcdp_epsilon
from edp_lab.privacy.accountants import ORDERS, check_delta, rdp_epsilon
from edp_lab.privacy.composition import advanced_composition, parallel_composition
from edp_lab.privacy.foundations import (
    ROUND_UP,
    analytic_gaussian_sigma,
    gaussian_release,
    laplace_scale,
    report_noisy_max,
)

Divergences = NDArray[np.float64]  # (A)
NO_LABEL = -1  # where Confident-GNMax does not answer
L1_SENSITIVITY = 2.0
THRESHOLD_SHARE = 0.8  # of the instructors: PATE 2018 asks for 200 of 250
THRESHOLD_RATIO = 3.75  # noise on the test of consensus over noise on the votes: its 150 over 40
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
NOT_RELEASABLE = "computed from the private votes, so itself private: not releasable without noise of its own"
SLACK = 1e-14  # of a log moment: rounding where terms of opposite sign nearly cancel


# ---- Votes -----------------------------------------------------------------------------------------------------------


class Vote(StrEnum):
    """Ways to vote; only the last three are private."""

    HARD = "hard"  # most votes; the lowest class where two have as many
    SOFT = "soft"  # largest mean probability
    LAPLACE = "laplace"  # LNMax: most votes after Laplace noise (Papernot et al. 2017, equation 1)
    GAUSSIAN = "gaussian"  # GNMax: the same with Gaussian noise (Papernot et al. 2018, section 4.1)
    CONFIDENT = "confident"  # GNMax only where instructors agree, which noise decides, too (algorithm 1 there)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise UsageError(f"unknown vote {value!r}: choose {', '.join(cls)}")


PRIVATE = (Vote.LAPLACE, Vote.GAUSSIAN, Vote.CONFIDENT)


@dataclass(frozen=True)
class Aggregator:
    """A way to vote, with its noise."""

    vote: Vote
    noise: float = 0.0  # on each count: scale b of Laplace noise (PATE's 1 / gamma), deviation of Gaussian noise, or 0
    threshold: float = 0.0  # votes that the strongest class needs, after noise, to be answered
    threshold_noise: float = 0.0  # deviation of that noise, of a confident vote; else 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "vote", Vote(self.vote))
        private, confident = self.vote in PRIVATE, self.vote is Vote.CONFIDENT
        for name, value, wanted in (("", self.noise, private), ("threshold ", self.threshold_noise, confident)):
            if not 0 <= value < math.inf or (value > 0) != wanted:
                needs = "must be a finite number greater than 0" if wanted else "must be 0: it adds none"
                raise UsageError(f"the {name}noise of a {self.vote} vote is {value}: it {needs}")
        if not math.isfinite(self.threshold):
            raise UsageError(f"the threshold of the vote is {self.threshold}: it must be a number of votes")

    @classmethod
    def for_epsilon(cls, vote: Vote | str, epsilon: float, delta: float, instructors: int) -> Aggregator:
        """The vote of which each query is epsilon-DP (Laplace) or (epsilon, delta)-DP (Gaussian, confident).

        Neighbours: one training example replaced, see the top. Laplace noise has the scale 2 / epsilon. A confident
        vote splits the budget between its two noises as PATE 2018 does on MNIST. Votes without noise take no epsilon.
        """
        vote = Vote(vote)
        if vote not in PRIVATE:
            return cls(vote)
        if not 0 < epsilon < math.inf:
            raise UsageError(f"the epsilon of a vote is {epsilon}: it must be a finite number greater than 0")
        if vote is Vote.LAPLACE:
            return cls(vote, laplace_scale(L1_SENSITIVITY, epsilon))
        unit = analytic_gaussian_sigma(1.0, epsilon, delta)
        if vote is Vote.GAUSSIAN:
            return cls(vote, math.sqrt(2) * unit * (1 + 1e-15))
        # The votes have sensitivity sqrt(2), the strongest count 1.
        share = math.sqrt(2 + THRESHOLD_RATIO**-2) * (1 + 1e-15)
        return cls(vote, share * unit, THRESHOLD_SHARE * instructors, THRESHOLD_RATIO * share * unit)

    def labels(self, probabilities: NDArray[np.floating[Any]], rng: np.random.Generator) -> NDArray[np.int64]:
        """The label of every query: (N, Q, K) -> (Q), -1 where there is no answer.

        Guarantee of one query, of many: `account_votes`. A hard or soft vote has none.
        """
        if self.vote is Vote.SOFT:
            return probabilities.mean(axis=0).argmax(axis=1)
        counts = vote_counts(probabilities.argmax(axis=2), probabilities.shape[2])
        if self.vote is Vote.HARD:
            return counts.argmax(axis=1)
        if self.vote is Vote.LAPLACE:
            return report_noisy_max(counts, 1.0, L1_SENSITIVITY / self.noise, rng)
        labels = gaussian_release(counts, self.noise, rng).argmax(axis=1)
        if self.vote is Vote.CONFIDENT:
            strongest = gaussian_release(counts.max(axis=1), self.threshold_noise, rng)
            labels[strongest < self.threshold] = NO_LABEL
        return labels


def vote_counts(predictions: ArrayLike, classes: int) -> NDArray[np.int64]:
    """How many instructors voted for each class: (N, Q) labels -> (Q, K)."""
    votes = np.asarray(predictions)
    if votes.ndim != 2 or not votes.shape[0]:
        raise UsageError("a vote needs the predictions of at least one instructor, one row for each")
    if votes.size and (votes.dtype.kind not in "iu" or votes.min() < 0 or votes.max() >= classes):
        raise UsageError(f"instructors may vote for 0 to {classes - 1}, the number of classes less 1, and nothing else")
    counts = np.zeros((votes.shape[1], classes), dtype=np.int64)
    for row in votes:
        counts[np.arange(len(row)), row] += 1
    return counts


def label_probabilities(counts: ArrayLike, aggregator: Aggregator) -> NDArray[np.float64]:
    """With what probability a noisy vote gives each label, if it answers: (K) -> (K), correct to 1e-12.

    P[j] is the integral of noise density at x - count_j times the product of the noise distribution at x - count_i.
    Ten voters who agree, ten classes, Laplace: 0.26 at scale 10, 0.50 at scale 5.
    """
    if aggregator.vote not in PRIVATE:
        raise UsageError(f"a {aggregator.vote} vote has no noise: its label is certain")
    votes = np.asarray(counts, dtype=np.float64) / aggregator.noise
    laplace = aggregator.vote is Vote.LAPLACE
    # Pieces of 1 around every count, where Laplace densities have their kinks: the integrand is smooth within each.
    reach = 40.0 if laplace else 9.0
    ends = np.unique(votes[:, None] + np.arange(-reach, reach + 1))
    half = np.diff(ends)[:, None] / 2
    x = ((ends[:-1, None] + half) + half * NODES).ravel() - votes[:, None]  # (K, X)
    if laplace:  # as scipy.stats has it, in a third of the time
        density = np.exp(-np.abs(x)) / 2
        below = np.where(x < 0, density, 1 - density)
    else:
        density, below = np.exp(-x * x / 2) / math.sqrt(2 * math.pi), ndtr(x)
    others = np.array([np.delete(below, j, axis=0).prod(axis=0) for j in range(len(votes))])
    return (density * others) @ (half * WEIGHTS).ravel()


# ---- What they cost --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VoteAccount:
    """What the labels of all queries cost together, for one training example replaced, in its place in the parts."""

    queries: int  # put to the vote, answered or not
    delta: float  # of every epsilon here, except that of one Laplace query, which holds at 0
    query_epsilon: float  # of one query; inf for a vote without noise, and so are all that follow
    composed: dict[str, float]  # of all queries by each way of adding up that is a bound, whatever the votes are
    epsilon: float  # the least of them: this is the guarantee
    data_dependent_epsilon: float  # for these votes, never above `epsilon`: see the note
    data_dependent_note: str = NOT_RELEASABLE


def account_votes(aggregator: Aggregator, counts: ArrayLike, delta: float) -> VoteAccount:
    """Judge the labels that `aggregator` gave for these counts, (Q, K).

    Formal guarantee: the labels of all queries, and every model and answer computed from them, are (epsilon, delta)-DP
    with respect to one training example, if that example reaches one instructor only, the queries do not depend on the
    training examples, and the noise is secret. A confident vote is charged as if it had answered every query.
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
    epsilon, dependent = min(composed.values()), 0.0
    if queries:
        # The bounds do not care which class has how many votes, so few rows remain.
        rows, times = np.unique(np.sort(votes, axis=1), axis=0, return_counts=True)
        total = np.zeros(len(ORDERS))
        for row, count in zip(rows, times.tolist(), strict=True):
            total += count * _query_rdp(aggregator, row)
        dependent = rdp_epsilon(total * ROUND_UP, delta) * ROUND_UP
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


def log_miss(counts: NDArray[Any], aggregator: Aggregator) -> float:
    """ln of a bound on the chance that noise topples the winner of a vote: (K) -> number; no more than 1 - 1/K.

    The union over the others, each g votes behind the winner, of (2 + g / b) / (4 e^(g / b)) for Laplace noise of scale
    b (Papernot et al. 2017, lemma 4), of P[N(0, 2 sigma^2) > g] for Gaussian noise (2018, proposition 7).
    """
    ordered = np.sort(counts)[::-1].astype(np.float64)
    gaps = ordered[0] - ordered[1:]
    if aggregator.vote is Vote.LAPLACE:
        gaps = gaps / aggregator.noise
        chances = np.log1p(gaps / 2) - math.log(2) - gaps
    else:
        chances = log_ndtr(-gaps / (math.sqrt(2) * aggregator.noise))
    # The winner is the likeliest label, so another one comes out with a chance of at most 1 - 1/K.
    return min(float(np.logaddexp.reduce(chances)) + SLACK, math.log1p(-1 / len(counts)))


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
    answer = gaussian_rdp(log_miss(counts, aggregator), aggregator.noise)
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


def _query_rdp(aggregator: Aggregator, counts: NDArray[Any]) -> Divergences:
    """Data-dependent Renyi divergence of one private query: (K) -> (A)."""
    if aggregator.vote is Vote.LAPLACE:
        return laplace_rdp(log_miss(counts, aggregator), query_epsilon(aggregator, 0.5))
    if aggregator.vote is Vote.CONFIDENT:
        return confident_rdp(counts, aggregator)
    return gaussian_rdp(log_miss(counts, aggregator), aggregator.noise)


class PartitionCost(NamedTuple):
    """What training on parts does to the epsilon of DP-SGD or DP-Adam instructors, at one delta."""

    one: float  # of a single model on all examples
    each: float  # of one of N instructors, same batch size, noise and epochs: it samples its part N times as densely
    together: float  # of all N: parallel composition, the maximum
    claimed: float  # one / N, the thesis' "ten times more private"


def partition_cost(
    examples: int, instructors: int, batch_size: int, epochs: int, noise_multiplier: float, delta: float
) -> PartitionCost:
    """Evidence on T9, by privacy loss distributions under Poisson sampling (add/remove) of each part."""
    if not 1 <= batch_size <= examples // max(instructors, 1) or instructors < 1 or epochs < 1:
        raise UsageError(
            f"{instructors} parts of {examples} examples, {epochs} epochs in batches of {batch_size}: "
            "give at least one part and one epoch, and parts no smaller than a batch"
        )

    sizes, how = (examples, examples // instructors), (batch_size, epochs, noise_multiplier, delta)
    one, each = (_training_epsilon(size, *how) for size in sizes)
    together = parallel_composition([(each, delta)] * instructors).epsilon
    return PartitionCost(one, each, together, one / instructors)


@lru_cache(maxsize=512)
def _training_epsilon(examples: int, batch_size: int, epochs: int, noise_multiplier: float, delta: float) -> float:
    rate = batch_size / examples
    schedule = Schedule(np.array([noise_multiplier]), np.array([epochs * math.ceil(1 / rate)]), rate)
    return (PrivacyLossDistribution if rate < 1 else GaussianDP)(schedule).epsilon(delta)


def _mu(aggregator: Aggregator) -> float:
    """Of one query with Gaussian noise: sensitivity over deviation, of all that is released."""
    consensus = 1 / aggregator.threshold_noise if aggregator.vote is Vote.CONFIDENT else 0.0
    return math.hypot(math.sqrt(2) / aggregator.noise, consensus) * ROUND_UP


def _log1mexp(x: Any) -> Any:
    """ln(1 - e^x) for x < 0."""
    return np.where(x > -math.log(2), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def _least(bound: Divergences, log_moment: Divergences) -> Divergences:
    """The smaller of a divergence and of that with this log moment, both rounded up and not below 0."""
    return np.minimum(bound, (np.maximum(log_moment, 0.0) * ROUND_UP + SLACK * ORDERS) / (ORDERS - 1))
