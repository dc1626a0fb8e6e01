"""What an audit proves: lower bounds on epsilon from right and wrong guesses, and what they say of a claim. No torch.

From draws of one step with and without a canary come two error rates, and from these a bound. From one run with m
canaries, each in the training set with chance 1/2, come r guesses, "in" or "out", and abstentions on the others; v
guesses are right. More right guesses than the claimed privacy allows refute it. Impossible counts, and a claim that is
missing or not finite, are refused by `UsageError`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

import numpy as np
from scipy.special import betainc, betainccinv, betaincinv, gammaln, logit, ndtr, ndtri

from edp_lab.errors import UsageError
from edp_lab.privacy import Guarantee, Mechanism, Variant, gdp_epsilon

SHARES = (0.1, 0.3, 1.0)  # of the canaries, on which guesses are made: extreme scores are surer, many guesses say more
SLACK = 1e-6  # relative, far above what rounding adds to a probability here
LARGEST_MU = 64.0
GRID = 32  # intervals into which the search for mu cuts what is left; five times


# ---- From the error rates of one step --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorRate:
    """How many guesses were wrong, and the Clopper-Pearson upper limit of the probability of that error."""

    errors: int
    upper_limit: float


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on epsilon at one delta, from the same two error rates."""

    gaussian: float
    distribution_free: float


def error_rate(wrong: np.ndarray, confidence: float) -> ErrorRate:
    """Of the guesses that were `wrong`: (draws), bool."""
    errors = int(wrong.sum())
    return ErrorRate(errors, upper_limit(errors, len(wrong), confidence))


def upper_limit(errors: int, draws: int, confidence: float) -> float:
    """Upper limit of an error probability, wrong with probability (1 - confidence)/2 at most; rounded up.

    Two such limits hold jointly at `confidence`. Source: Clopper and Pearson 1934.
    """
    if errors == draws:
        return 1.0
    return min(1.0, float(betainccinv(errors + 1, draws - errors, (1 - confidence) / 2)) * (1 + 1e-9))


def mu_lower_bound(fpr: float, fnr: float) -> float:
    """mu >= Phi^-1(1 - FPR) - Phi^-1(FNR), for upper limits of both rates; at least 0.

    Guarantee: whatever the threshold, as long as the limits hold and both sides are Gaussian with one covariance, as
    the step's output is: the distance of the means over the standard deviation, along any direction, is at most mu.
    """
    return max(0.0, float(-ndtri(fpr) - ndtri(fnr)))


def lower_bounds(fpr: float, fnr: float, delta: float) -> Bounds:
    """Lower bounds on epsilon from upper limits of both rates, hence as sure as these; rounded down.

    `gaussian` is the epsilon of `mu_lower_bound`. `distribution_free` holds for any mechanism: (epsilon, delta)-DP
    demands 1 - FNR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon FNR + delta (Kairouz, Oh and Viswanath 2015).
    """
    gaussian = epsilon_at_least(mu_lower_bound(fpr, fnr), delta)
    odds = max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)
    return Bounds(gaussian, max(0.0, math.log(odds) - 1e-12) if odds > 1 else 0.0)


def epsilon_at_least(mu: float, delta: float) -> float:
    """Of a Gaussian mechanism with at least that mu, rounded down."""
    # gdp_epsilon rounds up by less than 1e-11 of itself and, where it is tiny, by less than 1e-11.
    return max(0.0, gdp_epsilon(mu, delta) * (1 - 1e-11) - 1e-11)


# ---- From the guesses of one run -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """How many guesses were made, and how many of them were right."""

    guesses: int
    correct: int


@dataclass(frozen=True)
class OneRunBounds:
    """Lower bounds on epsilon at one delta, each at the whole confidence, from the same guesses."""

    distribution_free: float  # of Steinke, Nasr and Jagielski, for any mechanism
    mu: float | None  # of `one_run_mu`, and the epsilon it means; None for a mechanism that is not Gaussian
    gaussian: float | None
    tally: Tally  # behind `gaussian`, or where it is None behind `distribution_free`

    @property
    def best(self) -> float:
        """The one to go by, which the mechanism decides and not the guesses."""
        return self.distribution_free if self.gaussian is None else self.gaussian


def make_guesses(scores: np.ndarray, included: np.ndarray, shares: Sequence[float] = SHARES) -> tuple[Tally, ...]:
    """Guess "in" for the highest and "out" for the lowest scores, on each of these shares of the canaries.

    Args:
        scores: (m) higher for canaries that look as if they were in.
        included: (m) bool, the truth. How many guesses are made does not depend on it, nor on the scores.
    """
    truth, m, tallies = included[np.argsort(scores, kind="stable")], len(scores), []
    for r in sorted({max(1, round(share * m)) for share in shares}):
        lowest, highest = truth[: r // 2], truth[m - (r - r // 2) :]
        tallies.append(Tally(r, int((~lowest).sum() + highest.sum())))
    return tuple(tallies)


def one_run_bounds(m: int, tallies: Sequence[Tally], delta: float, confidence: float, gaussian: bool) -> OneRunBounds:
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
    return OneRunBounds(free, mu, epsilon_at_least(mu, delta), tallies[mus.index(mu)])


def one_run_epsilon(m: int, r: int, v: int, delta: float, beta: float) -> float:
    """The largest epsilon that v right out of r guesses on m canaries refute at significance beta; 0 for none.

    With q = e^eps / (1 + e^eps) and X ~ Bin(r, q), an (eps, delta)-DP mechanism has v or more right with probability

        p = P[X >= v] + 2 m delta max_{1 <= i <= v} P[v > X >= v - i] / i        at most

    (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2), and refuted is every
    epsilon up to the first with p >= beta; rounded down. References at beta 0.05: (1000, 100, 75, 1e-4) -> 0.673,
    (100000, 1510, 1439, 1e-5) -> 2.676.

    Guarantee: however the guesses and their places depend on what the mechanism released, r fixed beforehand.
    """
    _check_counts(m, r, v, beta)
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


@lru_cache(maxsize=64)
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
    """
    _check_counts(m, r, v, beta)

    def least_total(mu: np.ndarray) -> np.ndarray:
        """What P[W >= v] = beta asks for; where it exceeds 1, some number above 1: (K) -> (K)."""
        right, wrong = np.full(mu.shape, v * beta / m), np.full(mu.shape, (r - v) * beta / m)  # a_j, b_j
        for j in range(v, 0, -1):
            demanded = ndtr(ndtri(np.minimum(right, 1)) - mu)
            added = np.maximum(demanded - wrong, 0) / (r - j + 1)  # p_{j-1} / m
            right, wrong = right + added * (j - 1), wrong + added * (r - j + 1)
            if not ((added > 0) & ((right + wrong) * m <= 2 * r)).any():  # what demands nothing now never will
                break
        return (right + wrong) * m / r if r else np.zeros(mu.shape)

    low, high = 0.0, LARGEST_MU
    for _ in range(5):
        grid = np.linspace(low, high, GRID + 1)
        refuted = least_total(grid) > 1 + SLACK
        first_kept = len(grid) if refuted.all() else int(np.argmin(refuted))
        if first_kept == 0:
            return 0.0
        low, high = float(grid[first_kept - 1]), float(grid[min(first_kept, GRID)])
    return low


def _check_counts(m: int, r: int, v: int, beta: float) -> None:
    if not 0 <= v <= r <= m:
        raise UsageError(f"{v} right of {r} guesses on {m} canaries: neither may exceed what comes after it")
    if not 0 < beta < 1:
        raise UsageError(f"significance beta is {beta}: it must lie between 0 and 1, such as 0.05")


# ---- What that says of the claim -------------------------------------------------------------------------------------


class Finding(StrEnum):
    """What the audit says of the claim; it can refute a claim, never prove one."""

    REFUTED = "refuted"
    CONSISTENT = "consistent"
    NO_POWER = "no power"  # not even draws without a single error would refute the claim


def claim_under_test(guarantee: Guarantee, mechanism: Mechanism) -> float:
    """As printed, the paper's zCDP epsilon; sound, the epsilon that holds."""
    sound = mechanism.variant is Variant.SOUND
    claimed = guarantee.epsilon if sound else guarantee.epsilon_claimed
    if claimed is None:
        why = guarantee.reason if sound or mechanism.z0 == 0 else "the claimed epsilon exceeds the largest float"
        raise UsageError(f"there is no claim to audit ({why}): choose a larger z0")
    return claimed


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was claimed, what holds, and what an audit proves."""

    verdict: Finding
    explanation: str
    epsilon_claimed: float  # see `claim_under_test`
    epsilon_holds: float | None  # the judge's answer; None where there is no guarantee
    epsilon_lower_bound: float  # epsilon is at least this, at `confidence`
    ceiling: float  # the lower bound without a single error
    confidence: float
    delta: float
    adjacency: str
    noise_multiplier: float  # true noise over true sensitivity
    mechanism: Mechanism

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        guarantee: Guarantee,
        lower_bound: float,
        ceiling: float,
        confidence: float,
        evidence: str,
        found: str = "",
        flawless: str = "a single error",
        remark: str = "",
        **own: Any,
    ) -> Self:
        """Judge the claim by a lower bound and say why.

        Args:
            evidence: such as "100 draws a side"; `found`: what it showed, `flawless`: what its ceiling does without.
            own: the other fields.
        """
        claimed = claim_under_test(guarantee, mechanism)
        shown = f"{found}at {100 * confidence:.6g} % confidence epsilon is at least {lower_bound:.4g}"
        if lower_bound > claimed:
            verdict, why = Finding.REFUTED, f"refute the claim: {shown}, but {claimed:.4g} is claimed"
        elif ceiling <= claimed:
            most = f"even without {flawless} they would show no more than epsilon {ceiling:.4g}"
            verdict, why = Finding.NO_POWER, f"cannot test the claim: {most}, and {claimed:.4g} is claimed"
        else:
            nothing = "do not contradict the claim, which proves nothing"
            verdict, why = Finding.CONSISTENT, f"{nothing}: {shown}, and {claimed:.4g} is claimed"
        return cls(
            verdict=verdict,
            explanation=f"{evidence} {why}{remark}.",
            epsilon_claimed=claimed,
            epsilon_holds=guarantee.epsilon,
            epsilon_lower_bound=lower_bound,
            ceiling=ceiling,
            confidence=confidence,
            delta=guarantee.delta,
            adjacency=guarantee.adjacency,
            noise_multiplier=mechanism.noise_multiplier(0),
            mechanism=mechanism,
            **own,
        )
