"""Votes of instructors on labels (PATE), and what their labels cost, one and all together.

Noise is what makes a vote private. One training example changes at most one instructor, so at most one vote moves from
one class to another: the counts of two neighbours differ by 2 in L1 and by sqrt(2) in L2. Predictions of N instructors
for Q queries are (N, Q) labels, counts (Q, K).

N. Papernot, M. Abadi, U. Erlingsson, I. Goodfellow, K. Talwar, "Semi-supervised knowledge transfer for deep learning
from private training data", ICLR 2017 (arXiv 1610.05755); N. Papernot, S. Song, I. Mironov, A. Raghunathan, K. Talwar,
U. Erlingsson, "Scalable private learning with PATE", ICLR 2018 (arXiv 1802.08908). Their data-dependent bounds are left
out: an epsilon that is computed from the votes is itself private and cannot be published.

All bounds are rounded up. Votes, noise and budgets that make no sense are refused by `UsageError`.
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
    """A way to vote; only the last two are private."""

    HARD = "hard"  # most votes; the lowest class where two have as many
    LAPLACE = "laplace"  # LNMax: most votes after Laplace noise (Papernot et al. 2017, equation 1)
    GAUSSIAN = "gaussian"  # GNMax: the same with Gaussian noise (Papernot et al. 2018, section 4.1)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise UsageError(f"unknown vote {value!r}: choose {', '.join(cls)}")


PRIVATE = (Vote.LAPLACE, Vote.GAUSSIAN)


@dataclass(frozen=True)
class Aggregator:
    """A way to vote, with its noise."""

    vote: Vote
    noise: float = 0.0  # on each count: scale b of Laplace noise (PATE's 1 / gamma), deviation of Gaussian noise, or 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "vote", Vote(self.vote))
        private = self.vote in PRIVATE
        if not 0 <= self.noise < math.inf or (self.noise > 0) != private:
            needs = "must be a finite number greater than 0" if private else "must be 0: it adds none"
            raise UsageError(f"the noise of a {self.vote} vote is {self.noise}: it {needs}")

    @classmethod
    def for_epsilon(cls, vote: Vote | str, epsilon: float, delta: float) -> Aggregator:
        """The vote of which each query is epsilon-DP (Laplace) or (epsilon, delta)-DP (Gaussian).

        Neighbours: one training example replaced, see the top. Laplace noise has the scale 2 / epsilon. A vote without
        noise takes no epsilon.
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
        """The label of every query: (Q, K) -> (Q).

        Guarantee of one query, of many: `account_votes`. A hard vote has none.
        """
        if self.vote is Vote.HARD:
            return counts.argmax(axis=1)
        if self.vote is Vote.LAPLACE:
            return report_noisy_max(counts, 1.0, L1_SENSITIVITY / self.noise, rng)
        return gaussian_release(counts, self.noise, rng).argmax(axis=1)


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
    """Probability of each label under a noisy vote: (K) -> (K), correct to 1e-12.

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
    """Cost of the labels of all queries together, for one training example replaced, in its place in the parts."""

    queries: int  # number of labels
    delta: float  # of every epsilon here, except that of one Laplace query, which holds at 0
    query_epsilon: float  # of one query; inf for a vote without noise, and so is `epsilon`
    composed: dict[str, float]  # of all queries, by each way of adding up
    epsilon: float  # the least of them: this is the guarantee


def account_votes(aggregator: Aggregator, queries: int, delta: float) -> VoteAccount:
    """Judge the labels that `aggregator` gives for so many queries, whatever the votes are.

    Formal guarantee: the labels of all queries, and every model and answer computed from them, are (epsilon, delta)-DP
    with respect to one training example, if that example reaches one instructor only, the queries do not depend on the
    training examples, and the noise is secret.
    """
    check_delta(delta)
    composed = composed_epsilons(aggregator, queries, delta)
    least = min(composed.values(), default=math.inf if queries else 0.0)
    return VoteAccount(queries, delta, query_epsilon(aggregator, delta), composed, least)


def query_epsilon(aggregator: Aggregator, delta: float) -> float:
    """Epsilon of one query: 2 / scale at delta 0 for Laplace noise, else exact at `delta` for the noised counts."""
    if aggregator.vote not in PRIVATE:
        return math.inf
    if aggregator.vote is Vote.LAPLACE:
        return L1_SENSITIVITY / aggregator.noise * ROUND_UP
    return gdp_epsilon(_mu(aggregator), delta)


def composed_epsilons(aggregator: Aggregator, queries: int, delta: float) -> dict[str, float]:
    """Epsilon of `queries` votes at `delta` by each way of adding up; each is a bound for any votes.

    A vote without noise has none.

    * Laplace, pure epsilon: the plain sum; advanced composition; zero-concentrated DP with rho = queries epsilon^2 / 2
      (Bun and Steinke 2016, proposition 1.4); Renyi DP (PATE 2017's moments accountant with the better conversion).
    * Gaussian: the labels are computed from counts + noise, one Gaussian release of L2 sensitivity sqrt(2), so mu
      adds up in squares.
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
    """Sensitivity over standard deviation of all that one query with Gaussian noise releases."""
    return math.sqrt(2) / aggregator.noise * ROUND_UP


class PartitionCost(NamedTuple):
    """Epsilon of private training on all examples and on parts of them, at one delta."""

    one: float  # of a single model on all examples
    # Of N instructors, each on its part, all together: the maximum, by parallel composition (McSherry 2009, theorem 4),
    # as each example's part follows from its place. If replacing one could move it, two parts would change.
    together: float
    claimed: float  # one / N, the thesis' "ten times more private"


def partition_cost(
    examples: int, instructors: int, batch_size: int, epochs: int, noise_multiplier: float, delta: float
) -> PartitionCost:
    """Judge DP-SGD or DP-Adam under Poisson sampling (add/remove), with the same batch size, noise and epochs (T9).

    An instructor samples its part N times as densely as a single model samples all examples.
    """
    if not 1 <= batch_size <= examples // max(instructors, 1) or instructors < 1 or epochs < 1:
        raise UsageError(
            f"{instructors} parts of {examples} examples, {epochs} epochs in batches of {batch_size}: "
            "give at least one part and one epoch, and parts no smaller than a batch"
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
