"""How instructors vote on a label: by heads, by their mean probability, or by heads under noise.

Noise is what makes a vote private. One training example changes at most one instructor, so at most one vote moves from
one class to another: the counts of two neighbours differ by 2 in L1 and by sqrt(2) in L2. Predictions of N instructors
for Q queries are (N, Q) labels, their probabilities (N, Q, K), counts (Q, K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import analytic_gaussian_sigma, gaussian_release, laplace_scale, report_noisy_max

NO_LABEL = -1  # where Confident-GNMax does not answer
L1_SENSITIVITY = 2.0
THRESHOLD_SHARE = 0.8  # of the instructors: PATE 2018 asks for 200 of 250
THRESHOLD_RATIO = 3.75  # noise on the test of consensus over noise on the votes: its 150 over 40
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


class Vote(StrEnum):
    """Ways to vote; only the last three are private."""

    HARD = "hard"  # most votes; the lowest class where two have as many
    SOFT = "soft"  # largest mean probability
    LAPLACE = "laplace"  # LNMax: most votes after Laplace noise (Papernot et al. 2017, equation 1)
    GAUSSIAN = "gaussian"  # GNMax: the same with Gaussian noise (Papernot et al. 2018, section 4.1)
    CONFIDENT = "confident"  # GNMax only where instructors agree, which noise decides, too (algorithm 1 there)


PRIVATE = (Vote.LAPLACE, Vote.GAUSSIAN, Vote.CONFIDENT)


@dataclass(frozen=True)
class Aggregator:
    """A way to vote, with its noise.

    Attributes:
        noise: scale b of the Laplace noise (PATE's 1 / gamma), or standard deviation of the Gaussian noise, on each
            count; 0 for a vote without noise.
        threshold: votes that the strongest class needs, after noise of deviation `threshold_noise`, to be answered.
        threshold_noise: of a confident vote; else 0.

    Raises:
        UsageError: an unknown vote, noise that is missing, superfluous or not finite.
    """

    vote: Vote
    noise: float = 0.0
    threshold: float = 0.0
    threshold_noise: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "vote", check_vote(self.vote))
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

        Raises:
            UsageError: an unknown vote, epsilon not positive and finite, delta outside (0, 1).
        """
        vote = check_vote(vote)
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

        Guarantee of one query, of many: `edp_lab.three_phase.pate.account_votes`. A hard or soft vote has none.
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


def check_vote(vote: Vote | str) -> Vote:
    """Raises UsageError if there is no such vote."""
    if vote not in list(Vote):
        raise UsageError(f"unknown vote {vote!r}: choose {', '.join(Vote)}")
    return Vote(vote)


def vote_counts(predictions: ArrayLike, classes: int) -> NDArray[np.int64]:
    """How many instructors voted for each class: (N, Q) labels -> (Q, K).

    Raises:
        UsageError: no instructors, or a label that is no whole number from 0 to K - 1.
    """
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

    Raises:
        UsageError: a vote without noise.
    """
    if aggregator.vote not in PRIVATE:
        raise UsageError(f"a {aggregator.vote} vote has no noise: its label is certain")
    votes = np.asarray(counts, dtype=np.float64) / aggregator.noise
    density, distribution, reach = (
        (_laplace_density, _laplace_distribution, 40.0)
        if aggregator.vote is Vote.LAPLACE
        else (_normal_density, ndtr, 9.0)
    )
    # Pieces of 1 around every count, where Laplace densities have their kinks: the integrand is smooth within each.
    ends = np.unique(votes[:, None] + np.arange(-reach, reach + 1))
    half = np.diff(ends)[:, None] / 2
    x = ((ends[:-1, None] + half) + half * NODES).ravel() - votes[:, None]  # (K, X)
    below = distribution(x)
    others = np.array([np.delete(below, j, axis=0).prod(axis=0) for j in range(len(votes))])
    return (density(x) * others) @ (half * WEIGHTS).ravel()


def _laplace_density(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.abs(x)) / 2


def _laplace_distribution(x: NDArray[np.float64]) -> NDArray[np.float64]:
    tail = _laplace_density(x)
    return np.where(x < 0, tail, 1 - tail)


def _normal_density(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
