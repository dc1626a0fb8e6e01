"""How textbook guarantees add up: composition, amplification by subsampling, the privacy-loss distribution.

A guarantee is an `EpsilonDelta`, or any pair. An infinite epsilon or a delta of 1 promises nothing and is passed on; a
negative or NaN epsilon and a delta outside [0, 1] raise `UsageError`, as do numbers outside the ranges given below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy.foundations import ROUND_UP, check_positive


class EpsilonDelta(NamedTuple):
    epsilon: float
    delta: float = 0.0


def basic_composition(guarantees: Iterable[tuple[float, float]]) -> EpsilonDelta:
    """The sums of the epsilons and of the deltas: what releases about the same data cost together.

    Guarantee: for any releases, also if each is chosen after seeing the answers before it (from a list of epsilons
    fixed beforehand). Nothing released costs (0, 0).
    Source: Dwork and Roth 2014, theorem 3.16; adaptive: Dwork, Kenthapadi, McSherry, Mironov and Naor 2006.
    """
    pairs = _check_guarantees(guarantees)
    return EpsilonDelta(math.fsum(e for e, _ in pairs), min(1.0, math.fsum(d for _, d in pairs)))


def advanced_composition(epsilon: float, delta: float, releases: int, slack: float) -> EpsilonDelta:
    """k releases, each (epsilon, delta)-DP: eps sqrt(2 k ln(1 / slack)) + k eps (e^eps - 1), at k delta + slack.

    Guarantee: as `basic_composition`, for a slack > 0 chosen beforehand. The theorem as it stands: for few releases
    or a large epsilon (always from ln 2 on) the plain sum is smaller, see `best_composition`.
    Source: Dwork, Rothblum and Vadhan 2010, theorem III.3; Dwork and Roth 2014, theorem 3.20.
    """
    total = _compose_equal(epsilon, delta, releases)
    if not 0 < slack < 1:
        raise UsageError(f"the slack is {slack}: it is a share of delta and must lie between 0 and 1")
    drift = math.expm1(epsilon) if epsilon < 700 else math.inf
    bound = epsilon * (math.sqrt(-2 * releases * math.log(slack)) + releases * drift)
    return EpsilonDelta(bound * ROUND_UP, min(1.0, total.delta + slack))


def best_composition(epsilon: float, delta: float, releases: int, slack: float) -> EpsilonDelta:
    """The smaller epsilon of `basic_composition` and `advanced_composition`, both at delta k delta + slack.

    Both bounds hold at that delta (the plain sum already at k delta), and neither looks at the answers, so choosing
    between them is free.
    """
    advanced = advanced_composition(epsilon, delta, releases, slack)
    return EpsilonDelta(min(advanced.epsilon, _compose_equal(epsilon, delta, releases).epsilon), advanced.delta)


def parallel_composition(guarantees: Iterable[tuple[float, float]]) -> EpsilonDelta:
    """The maximum of the epsilons and of the deltas: releases about disjoint parts of the data.

    Guarantee: if each record's part follows from that record alone (or its place), and one person is one record:
    for a record added, removed or zeroed out. Where replacing a record can move it to another part, two parts change
    and the sum of the two largest holds instead. Never less than any one part.
    Source: McSherry 2009, theorem 4.
    """
    pairs = _check_guarantees(guarantees)
    return EpsilonDelta(max((e for e, _ in pairs), default=0.0), max((d for _, d in pairs), default=0.0))


def amplify_by_subsampling(epsilon: float, delta: float, rate: float) -> EpsilonDelta:
    """An (epsilon, delta)-DP release of a random sample of the data: ln(1 + q (e^eps - 1)), q delta.

    Guarantee: for a sample that stays secret and is drawn afresh, in one of two ways. Poisson: each record by itself
    with probability q, add/remove. Fixed size without replacement: q n of n records, replace-one, both for the
    release and for the result. Not for other pairings, and not for one shuffled pass in disjoint batches, which
    amplifies nothing here. (q epsilon, q delta) is a bound only to first order: it is smaller than the truth.
    Source: Balle, Barthe and Gaboardi 2018, theorems 8 and 9.
    """
    _check_guarantees([(epsilon, delta)])
    if not 0 < rate <= 1:
        raise UsageError(f"the sampling rate is {rate}: it must be greater than 0 and at most 1")
    if epsilon < 700:
        amplified = math.log1p(rate * math.expm1(epsilon))
    else:  # the same, where e^eps would overflow
        amplified = epsilon * ROUND_UP + math.log(rate + (1 - rate) * math.exp(-epsilon))
    return EpsilonDelta(min(epsilon, amplified * ROUND_UP), rate * delta)


def gaussian_loss_density(loss: ArrayLike, mu: float) -> NDArray[np.float64]:
    """The density of the privacy loss ln(p(output) / p'(output)) of one Gaussian release: N(mu^2 / 2, mu^2).

    mu is L2 sensitivity over standard deviation; any shape.
    Source: Balle and Wang 2018, lemma 3.
    """
    z = _standardised(loss, mu)
    return np.exp(-z * z / 2) / (mu * math.sqrt(2 * math.pi))


def gaussian_loss_tail(epsilon: ArrayLike, mu: float) -> NDArray[np.float64]:
    """P[loss > epsilon] of one Gaussian release; any shape.

    A delta that is true but too large: the tight one is E[(1 - e^(epsilon - loss))+] = gdp_delta(mu, epsilon), which
    counts an outcome just beyond epsilon hardly at all. Variance 2, sensitivity 1, ln 3: 0.115 against 0.030.
    """
    return ndtr(-_standardised(epsilon, mu))


def _standardised(loss: ArrayLike, mu: float) -> NDArray[np.float64]:
    return np.asarray(loss, dtype=np.float64) / check_positive("mu", mu) - mu / 2


def _compose_equal(epsilon: float, delta: float, releases: int) -> EpsilonDelta:
    _check_guarantees([(epsilon, delta)])
    check_whole("the number of releases", releases, 1)
    return EpsilonDelta(int(releases) * epsilon, min(1.0, int(releases) * delta))


def _check_guarantees(guarantees: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    pairs = list(guarantees)
    for epsilon, delta in pairs:
        if not epsilon >= 0:
            raise UsageError(f"epsilon is {epsilon}: a guarantee needs a number from 0 on")
        if not 0 <= delta <= 1:
            raise UsageError(f"delta is {delta}: a guarantee needs a number from 0 to 1")
    return pairs
