"""What right guesses about many canaries of one training run prove: lower bounds on epsilon. No torch, no training.

Each of m canaries is in the training set with chance 1/2. Whoever saw what the run released makes r guesses, "in" or
"out", and abstains on the others; v guesses are right. More right guesses than the claimed privacy allows refute it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, betaincinv, gammaln, logit, ndtr, ndtri

from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon

SHARES = (0.1, 0.3, 1.0)  # of the canaries, on which guesses are made: extreme scores are surer, many guesses say more
SLACK = 1e-6  # relative, far above what rounding adds to a probability here
LARGEST_MU = 64.0
GRID = 32  # intervals into which the search for mu cuts what is left; five times


@dataclass(frozen=True)
class Tally:
    """How many guesses were made, and how many of them were right."""

    guesses: int
    correct: int


@dataclass(frozen=True)
class OneRunBounds:
    """Lower bounds on epsilon at one delta, each at the whole confidence, from the same guesses.

    Attributes:
        distribution_free: of Steinke, Nasr and Jagielski, for any mechanism.
        mu, gaussian: of `one_run_mu` and the epsilon it means; None for a mechanism that is not Gaussian.
        tally: behind `gaussian`, or where it is None behind `distribution_free`.
    """

    distribution_free: float
    mu: float | None
    gaussian: float | None
    tally: Tally

    @property
    def best(self) -> float:
        """The one to go by, which the mechanism decides and not the guesses."""
        return self.distribution_free if self.gaussian is None else self.gaussian


def make_guesses(scores: np.ndarray, included: np.ndarray) -> tuple[Tally, ...]:
    """Guess "in" for the highest and "out" for the lowest scores, on each of `SHARES` of the canaries.

    Args:
        scores: (m) higher for canaries that look as if they were in.
        included: (m) bool, the truth. How many guesses are made does not depend on it, nor on the scores.
    """
    order = np.argsort(scores, kind="stable")
    truth, m = included[order], len(scores)
    numbers = sorted({max(1, round(share * m)) for share in SHARES})
    tallies = []
    for r in numbers:
        lowest, highest = truth[: r // 2], truth[m - (r - r // 2) :]
        tallies.append(Tally(r, int((~lowest).sum() + highest.sum())))
    return tuple(tallies)


def lower_bounds(m: int, tallies: Sequence[Tally], delta: float, confidence: float, gaussian: bool) -> OneRunBounds:
    """The best bounds that several tallies give. Looking at several is paid for: each gets its share of the error.

    Guarantee: if flipping any one canary is a neighbour of the mechanism, its epsilon at `delta` lies below
    `distribution_free` with probability 1 - `confidence` at most; so with `gaussian`, if it is mu-GDP for some mu and
    epsilon is that of mu (as with Gaussian noise and disjoint batches).
    """
    beta = (1 - confidence) / len(tallies)
    epsilons = [one_run_epsilon(m, t.guesses, t.correct, delta, beta) for t in tallies]
    free = max(epsilons)
    if not gaussian:
        return OneRunBounds(free, None, None, tallies[epsilons.index(free)])
    mus = [one_run_mu(m, t.guesses, t.correct, beta) for t in tallies]
    mu = max(mus)
    # gdp_epsilon rounds up by less than 1e-11 of itself and, where it is tiny, by less than 1e-11.
    epsilon = max(0.0, gdp_epsilon(mu, delta) * (1 - 1e-11) - 1e-11)
    return OneRunBounds(free, mu, epsilon, tallies[mus.index(mu)])


def one_run_epsilon(m: int, r: int, v: int, delta: float, beta: float) -> float:
    """The largest epsilon that v right out of r guesses on m canaries refute at significance beta; 0 for none.

    With q = e^eps / (1 + e^eps) and X ~ Bin(r, q), an (eps, delta)-DP mechanism has v or more right with probability

        p = P[X >= v] + 2 m delta max_{1 <= i <= v} P[v > X >= v - i] / i        at most

    (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2), and refuted is every
    epsilon up to the first with p >= beta; rounded down. References at beta 0.05: (1000, 100, 75, 1e-4) -> 0.673,
    (100000, 1510, 1439, 1e-5) -> 2.676.

    Guarantee: however the guesses and their places depend on what the mechanism released, r fixed beforehand.

    Raises:
        UsageError: not 0 <= v <= r <= m, or delta or beta out of range.
    """
    _check(m, r, v, beta)
    if not 0 <= delta < 1:
        raise UsageError(f"delta is {delta}: it must be at least 0 and below 1")
    if v == 0:
        return 0.0
    below = np.arange(v - 1, -1, -1)
    log_choose = gammaln(r + 1) - gammaln(below + 1) - gammaln(r - below + 1)
    weights = 2 * m * delta / np.arange(1, v + 1)

    def refuted(epsilon: float) -> bool:
        log_wrong = -float(np.logaddexp(0, epsilon))  # ln(1 - q)
        at_least = float(betainc(v, r - v + 1, 1 / (1 + math.exp(-epsilon))))
        just_below = np.cumsum(np.exp(log_choose + below * epsilon + r * log_wrong))
        # A weight above 1 is put on P[X >= v] too: a little more than the theorem asks, and p rises with epsilon.
        p = np.maximum(1, weights) * at_least + weights * just_below
        return float(p.max()) * (1 + SLACK) < beta

    low, high = 0.0, min(float(logit(betaincinv(v, r - v + 1, beta))), 700.0)  # at high, P[X >= v] alone is beta
    if high <= 0 or not refuted(low):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def one_run_mu(m: int, r: int, v: int, beta: float) -> float:
    """The largest mu for which v right out of r guesses on m canaries refute mu-GDP at significance beta; 0 for none.

    Let W guesses be right, p_i = P[W = i]. For any j, that guess k is right and W >= j means: it points to the truth,
    and at least j - 1 of the others are right. Were canary k flipped, the same guesses would have k wrong and W >= j-1.
    mu-GDP bounds the one probability by F(x) = Phi(Phi^-1(x) + mu) of the other. F is concave, so averaged over the m
    canaries and all the rest (an abstention is neither right nor wrong)

        a_j <= F(b_{j-1}),     a_j = sum_{i >= j} p_i i / m,     b_j = sum_{i >= j} p_i (r - i) / m

    which is the argument of Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run".
    Suppose P[W >= v] = beta. The least total probability that goes with it has all of beta at v and, from there
    downwards, just as much at each j - 1 as the inequality demands (moved further down, a surplus helps every
    inequality that is left). Where that total exceeds 1, P[W >= v] is below beta, and v right guesses refute mu.

    Guarantee: a mu-GDP mechanism, guesses and their places as in `one_run_epsilon`. Rounded down.

    Raises:
        UsageError: not 0 <= v <= r <= m, or beta out of range.
    """
    _check(m, r, v, beta)
    low, high = 0.0, LARGEST_MU
    for _ in range(5):
        grid = np.linspace(low, high, GRID + 1)
        refuted = _least_total(m, r, v, beta, grid) > 1 + SLACK
        first_kept = len(grid) if refuted.all() else int(np.argmin(refuted))
        if first_kept == 0:
            return 0.0
        low, high = float(grid[first_kept - 1]), float(grid[min(first_kept, GRID)])
    return low


def _least_total(m: int, r: int, v: int, beta: float, mu: np.ndarray) -> np.ndarray:
    """The least total probability that P[W >= v] = beta asks for; where it exceeds 1, some number above 1: (K)."""
    right, wrong = np.full(mu.shape, v * beta / m), np.full(mu.shape, (r - v) * beta / m)  # a_j, b_j
    for j in range(v, 0, -1):
        demanded = ndtr(ndtri(np.minimum(right, 1)) - mu)
        added = np.maximum(demanded - wrong, 0) / (r - j + 1)  # p_{j-1} / m
        right, wrong = right + added * (j - 1), wrong + added * (r - j + 1)
        if not ((added > 0) & ((right + wrong) * m <= 2 * r)).any():  # what demands nothing now never will
            break
    return (right + wrong) * m / r if r else np.zeros(mu.shape)


def _check(m: int, r: int, v: int, beta: float) -> None:
    if not 0 <= v <= r <= m:
        raise UsageError(f"{v} right of {r} guesses on {m} canaries: neither may exceed what comes after it")
    if not 0 < beta < 1:
        raise UsageError(f"significance beta is {beta}: it must lie between 0 and 1, such as 0.05")
