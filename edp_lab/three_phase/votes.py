"""Votes of instructors on labels (PATE), and the privacy cost of one label and of all labels together.

Noise makes a vote private. One training example changes at most one instructor, so at most one vote moves from one
class to another. The counts of two neighbours differ by at most 2 in L1 and sqrt(2) in L2. Predictions of N instructors
for Q queries are labels (N, Q); counts are (Q, K).

N. Papernot, M. Abadi, U. Erlingsson, I. Goodfellow, K. Talwar, "Semi-supervised knowledge transfer for deep learning
from private training data", ICLR 2017 (arXiv 1610.05755); N. Papernot, S. Song, I. Mironov, A. Raghunathan, K. Talwar,
U. Erlingsson, "Scalable private learning with PATE", ICLR 2018 (arXiv 1802.08908). We omit their data-dependent bounds:
an epsilon computed from the votes is itself private and cannot be published.

All bounds are rounded up. Functions raise UsageError if votes, noise or budget are invalid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, gdp_epsilon, judge, zcdp_epsilon
from edp_lab.privacy.foundations import (
    ROUND_UP,
    advanced_composition,
    analytic_gaussian_sigma,
    gaussian_release,
    laplace_scale,
    report_noisy_max,
)
from edp_lab.privacy.gdp import check_delta
from edp_lab.privacy.pld import ORDERS, rdp_epsilon

L1_SENSITIVITY = 2.0
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


# ---- Votes -----------------------------------------------------------------------------------------------------------


class Vote(StrEnum):
    """Voting method; only the last two are private."""

    HARD = "hard"  # most votes; ties go to the lowest class
    LAPLACE = "laplace"  # LNMax: most votes after Laplace noise (Papernot et al. 2017, equation 1)
    GAUSSIAN = "gaussian"  # GNMax: the same with Gaussian noise (Papernot et al. 2018, section 4.1)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise UsageError(f"unknown vote {value!r}: choose {', '.join(cls)}")


PRIVATE = (Vote.LAPLACE, Vote.GAUSSIAN)


@dataclass(frozen=True)
class Aggregator:
    """Voting method with its noise."""

    vote: Vote
    noise: float = 0.0  # on each count: scale b of Laplace noise (PATE's 1 / gamma), std of Gaussian noise, or 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "vote", Vote(self.vote))
        private = self.vote in PRIVATE
        if not 0 <= self.noise < math.inf or (self.noise > 0) != private:
            needs = "must be a finite number greater than 0" if private else "must be 0, as this vote is exact"
            raise UsageError(f"the noise of a {self.vote} vote is {self.noise}: it {needs}")

    @classmethod
    def for_epsilon(cls, vote: Vote | str, epsilon: float, delta: float) -> Aggregator:
        """Make an aggregator with epsilon-DP (Laplace) or (epsilon, delta)-DP (Gaussian) for each query.

        Neighbours differ by replacing one training example (see the top of this file). The scale of Laplace noise is
        2 / epsilon. A vote without noise ignores epsilon.
        """
        vote = Vote(vote)
        if vote not in PRIVATE:
            return cls(vote)
        if not 0 < epsilon < math.inf:
            raise UsageError(f"the epsilon of a vote is {epsilon}: it must be a finite number greater than 0")
        if vote is Vote.LAPLACE:
            return cls(vote, laplace_scale(L1_SENSITIVITY, epsilon))
        return cls(vote, math.sqrt(2) * analytic_gaussian_sigma(1.0, epsilon, delta) * (1 + 1e-15))

    def labels(self, counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Label of every query: (Q, K) -> (Q).

        See `account_votes` for the guarantee for one query and for all. A hard vote guarantees nothing.
        """
        if self.vote is Vote.HARD:
            return counts.argmax(axis=1)
        if self.vote is Vote.LAPLACE:
            return report_noisy_max(counts, 1.0, L1_SENSITIVITY / self.noise, rng)
        return gaussian_release(counts, self.noise, rng).argmax(axis=1)


def vote_counts(predictions: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Number of instructors that voted for each class: labels (N, Q) -> (Q, K)."""
    votes = np.asarray(predictions)
    if votes.ndim != 2 or not votes.shape[0]:
        raise UsageError("a vote needs one row of predictions per instructor, and at least one instructor")
    if votes.size and (votes.dtype.kind not in "iu" or votes.min() < 0 or votes.max() >= classes):
        raise UsageError(f"every vote must be a class from 0 to {classes - 1}")
    counts = np.zeros((votes.shape[1], classes), dtype=np.int64)
    for row in votes:
        counts[np.arange(len(row)), row] += 1
    return counts


def label_probabilities(counts: ArrayLike, aggregator: Aggregator) -> NDArray[np.float64]:
    """Probability of each label under a noisy vote: (K) -> (K), correct to 1e-12.

    P[j] is the integral of the noise density at x - count_j times the product of the distributions at x - count_i.
    Reference: if ten voters agree on one of ten classes, its probability is 0.26 with Laplace noise of scale 10 and
    0.50 with scale 5.
    """
    if aggregator.vote not in PRIVATE:
        raise UsageError(f"a {aggregator.vote} vote has no noise: its label is certain")
    votes = np.asarray(counts, dtype=np.float64) / aggregator.noise
    laplace = aggregator.vote is Vote.LAPLACE
    # The integrand is smooth inside intervals of length 1 that end at every count, where Laplace densities have kinks.
    reach = 40.0 if laplace else 9.0
    ends = np.unique(votes[:, None] + np.arange(-reach, reach + 1))
    half = np.diff(ends)[:, None] / 2
    x = ((ends[:-1, None] + half) + half * NODES).ravel() - votes[:, None]  # (K, X)
    if laplace:  # the formulas of scipy.stats, in a third of the time
        density = np.exp(-np.abs(x)) / 2
        below = np.where(x < 0, density, 1 - density)
    else:
        density, below = np.exp(-x * x / 2) / math.sqrt(2 * math.pi), ndtr(x)
    others = np.array([np.delete(below, j, axis=0).prod(axis=0) for j in range(len(votes))])
    return (density * others) @ (half * WEIGHTS).ravel()


# ---- Privacy cost ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VoteAccount:
    """Privacy cost of the labels of all queries together, for replacing one training example in its place."""

    queries: int  # number of queries answered
    delta: float  # delta of every epsilon below, except for one Laplace query, which has delta 0
    query_epsilon: float  # epsilon of one query; for a vote without noise, both this and `epsilon` are inf
    composed: dict[str, float]  # epsilon of all queries together, by composition method
    epsilon: float  # guaranteed epsilon, the smallest of these


def account_votes(aggregator: Aggregator, queries: int, delta: float) -> VoteAccount:
    """Compute the privacy cost of the labels of this number of queries, for any votes.

    Formal guarantee: the labels of all queries, and every model and answer computed from them, are (epsilon, delta)-DP
    with respect to one training example, if that example reaches one instructor only, the queries do not depend on the
    training examples, and the noise is secret.
    """
    check_delta(delta)
    composed = composed_epsilons(aggregator, queries, delta)
    least = min(composed.values(), default=math.inf if queries else 0.0)
    return VoteAccount(queries, delta, query_epsilon(aggregator, delta), composed, least)


def query_epsilon(aggregator: Aggregator, delta: float) -> float:
    """Epsilon of one query: 2 / scale at delta 0 (Laplace), or that of the noised counts at `delta` (Gaussian)."""
    if aggregator.vote not in PRIVATE:
        return math.inf
    if aggregator.vote is Vote.LAPLACE:
        return L1_SENSITIVITY / aggregator.noise * ROUND_UP
    return gdp_epsilon(_mu(aggregator), delta)


def composed_epsilons(aggregator: Aggregator, queries: int, delta: float) -> dict[str, float]:
    """Epsilon of this number of queries at `delta`, by each composition method, for any votes; each is a valid bound.

    The result is empty for a vote without noise.

    * Laplace, pure epsilon: the plain sum; advanced composition; zero-concentrated DP with rho = queries epsilon^2 / 2
      (Bun and Steinke 2016, proposition 1.4); Renyi DP (PATE 2017's moments accountant with the better conversion).
    * Gaussian: the labels are computed from counts + noise, a Gaussian release with L2 sensitivity sqrt(2), so the
      squares of mu add up.
    """
    check_delta(delta)
    if aggregator.vote is Vote.HARD:
        return {}
    if aggregator.vote is Vote.GAUSSIAN:
        return {"Gaussian DP": gdp_epsilon(_mu(aggregator) * math.sqrt(queries) * ROUND_UP, delta)}
    each = query_epsilon(aggregator, delta)
    # Bun and Steinke 2016, proposition 3.3; theorem 2 of PATE 2017 is its first part with epsilon = 2 gamma.
    divergences = np.minimum(ORDERS * each**2 / 2, each) * ROUND_UP
    return {
        "plain sum": queries * each * ROUND_UP,
        "advanced composition": advanced_composition(each, queries, delta) if queries else 0.0,
        "zCDP": zcdp_epsilon(queries * each**2 / 2, delta) * ROUND_UP,
        "Renyi DP": rdp_epsilon(queries * divergences, delta) * ROUND_UP,
    }


def _mu(aggregator: Aggregator) -> float:
    """Sensitivity over standard deviation of one query with Gaussian noise."""
    return math.sqrt(2) / aggregator.noise * ROUND_UP


class PartitionCost(NamedTuple):
    """Epsilon of private training on all examples and on parts of them, at one delta."""

    one: float  # epsilon of a single model on all examples
    # For N instructors together, each on its part: the maximum, by parallel composition (McSherry 2009, theorem 4), for
    # removing an example and leaving its place empty. If other examples moved to another part, two parts would change.
    together: float
    claimed: float  # one / N, the thesis' "ten times more private"


def partition_cost(
    examples: int, instructors: int, batch_size: int, epochs: int, noise_multiplier: float, delta: float
) -> PartitionCost:
    """Compare epsilons under Poisson sampling (add/remove), with the same batch size, noise and epochs (T9).

    An instructor's sampling rate on its part is N times that of a single model on all examples.
    """
    if not 1 <= batch_size <= examples // max(instructors, 1) or instructors < 1 or epochs < 1:
        raise UsageError(
            f"{instructors} parts of {examples} examples, {epochs} epochs in batches of {batch_size}: "
            "use at least one part and one epoch, and parts no smaller than a batch"
        )
    one, each = (
        _training_epsilon(batch_size / size, epochs, noise_multiplier, delta)
        for size in (examples, examples // instructors)
    )
    return PartitionCost(one, each, one / instructors)


@lru_cache(maxsize=512)
def _training_epsilon(rate: float, epochs: int, noise_multiplier: float, delta: float) -> float:
    mechanism = Mechanism.sound(1.0, noise_multiplier, 1, 1, sampling_rate=rate)
    epsilon = judge(mechanism, epochs, delta).conditional_epsilon
    return math.inf if epsilon is None else epsilon
