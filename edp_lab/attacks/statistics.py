"""Attack statistics, without torch: metrics with intervals, upper bounds on any attack, lower bounds on epsilon.

Scores are 1-D arrays with one number per utterance; a higher number means "member". They may be infinite but not NaN. A
threshold t classifies every utterance with a score of at least t as a member. The TPR is the share of members, and the
FPR the share of non-members, that are classified as members. All intervals treat the utterances of each side as
independent draws, given the trained model: they cover the choice of utterances, not the variation between training
runs. Copies of a text are not independent, so on ATIS, where 7 % of the utterances are copies, the interval of an AUC
is about 10 % too narrow. Functions raise UsageError if a side has no scores, or if a value is out of range.

An audit turns guesses into lower bounds on epsilon. Repeating one step with and without a canary yields two error rates
that imply a bound. In a run with m canaries, each in the training set with probability 1/2, the attacker guesses "in"
or "out" for r canaries and abstains on the others; v guesses are correct. Too many correct guesses refute the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betainccinv, betaincinv, erf, expit, gammaln, logit, ndtr, ndtri

from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon
from edp_lab.privacy.gdp import check_loss, check_rates

Scores = NDArray[np.float64]
Interval = tuple[float, float]
Texts = tuple[ArrayLike, ArrayLike]
FPRS = (0.01, 0.001)
LEAST_MEMBERS = 50  # minimum per side; with fewer, intervals are too wide to be useful
CONFIDENCE = 0.95  # default confidence of intervals
ROUND_UP = 1 + 1e-11  # exceeds the rounding error of all bounds; `ndtri` far in the tail has the largest error

SHARES = (0.1, 0.3, 1.0)  # shares of canaries to guess; the smallest share has the most reliable guesses
SLACK = 1e-6  # relative tolerance, far above the rounding error of the probabilities
LARGEST_MU = 64.0
GRID = 32  # number of intervals into which each of the five rounds of the search for mu divides the range


class Roc(NamedTuple):
    """ROC curve at every distinct threshold, from (0, 0) to (1, 1); a score found on both sides raises both rates."""

    fpr: Scores  # (T) ascending
    tpr: Scores


class Rate(NamedTuple):
    """Share with its Clopper-Pearson interval."""

    value: float
    interval: Interval


class Bound(NamedTuple):
    """Upper bound on any attack, rounded up; see `dp_bound` for its assumptions."""

    auc: float
    advantage: float
    tpr: Callable[[ArrayLike], Scores]  # bound at false-positive rates in [0, 1]: a number or (F) -> the same shape


@dataclass(frozen=True)
class AttackResult:
    """Metrics of one attack: how well its scores separate members from non-members."""

    attack: str
    auc: float
    auc_interval: Interval
    # For each FPR, such as "0.01": {"value", "interval", "guessing"}; {"value": None, "why"} with too few non-members.
    tpr_at_fpr: dict[str, dict[str, Any]]
    advantage: float  # maximum of TPR - FPR, biased upwards (see `advantage`)
    bound: dict[str, Any] | None  # "epsilon", "delta", "auc", "tpr_at_fpr", "advantage"; None without a finite epsilon
    members: int
    non_members: int
    confidence: float
    roc: Roc = field(repr=False, compare=False)  # for figures

    def to_json(self) -> dict[str, Any]:
        """All fields except the curve, for `json.dumps`."""
        return {name: value for name, value in vars(self).items() if name != "roc"}


# ---- From scores to figures ------------------------------------------------------------------------------------------


def roc(members: ArrayLike, non_members: ArrayLike) -> Roc:
    """Compute the ROC curve of the scores."""
    inside, outside = _checked(members, non_members)
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    fpr, tpr = (
        np.append(0.0, (len(side) - np.searchsorted(np.sort(side), thresholds)) / len(side))
        for side in (outside, inside)
    )
    return Roc(fpr, tpr)


def auc(members: ArrayLike, non_members: ArrayLike) -> float:
    """Area under the ROC curve: the probability that a member scores above a non-member, plus half that of a tie."""
    return float(_placements(*_checked(members, non_members))[0].mean())


def auc_interval(
    members: ArrayLike, non_members: ArrayLike, confidence: float = CONFIDENCE, texts: Texts | None = None
) -> Interval:
    """Confidence interval for the AUC, within [0, 1] and never of width zero.

    We use the normal interval on the logit scale, with DeLong's variance (DeLong, DeLong and Clarke-Pearson 1988),
    computed by sorting in O(n log n) as in Sun and Xu 2014. The interval is asymptotic. In simulations with normal
    scores, 93 to 97 % of the 95 % intervals covered an AUC of up to 0.9 (20 to 1,000 scores per side) or, with equal
    sides, of up to 0.99. For an AUC of 0.999 with 50 members and 1,000 non-members, only 86 % of the intervals covered
    it. If the variance is 0 (all pairs right, all wrong, or all scores equal) or undefined (one utterance on a side),
    we use the Clopper-Pearson interval for k = min(members, non-members) pairs, of which AUC x k are right. This is
    conservative: k disjoint pairs are independent, each is right with probability at most the AUC, and the sample's
    other pairs only add information.

    Args:
        texts: for each side, the index of each utterance's text. Copies have equal scores, so they are grouped
            (Obuchowski 1997). None if all texts differ.
    """
    inside, outside = _checked(members, non_members)
    check_confidence(confidence)
    placed = _placements(inside, outside)
    area = float(placed[0].mean())
    pairs = min(len(inside), len(outside))
    if pairs < 2 or (np.ptp(placed[0]) == 0 and np.ptp(placed[1]) == 0):
        return clopper_pearson(area * pairs, pairs, confidence)
    reach = _half_width(placed, texts, confidence) / (area * (1 - area))
    return float(expit(logit(area) - reach)), float(expit(logit(area) + reach))


def tpr_at_fpr(members: ArrayLike, non_members: ArrayLike, fpr: float, confidence: float = CONFIDENCE) -> Rate | None:
    """The largest TPR among thresholds whose empirical FPR is at most `fpr`; None if fpr x non-members < 1.

    If k non-members are allowed, the threshold is just above the (k + 1)-th highest score of a non-member. It does not
    depend on the members' scores, so the Clopper-Pearson interval is exact for the TPR *at this threshold*. It does not
    cover the uncertainty of the true FPR, which is about twice `fpr` on average if k = 1 (see `true_fpr`).
    """
    inside, outside = _checked(members, non_members)
    check_confidence(confidence)
    if not 0 < fpr < 1:
        raise UsageError(f"the false-positive rate is {fpr}: it must be between 0 and 1, such as 0.01")
    allowed = _allowed(len(outside), fpr)
    if not allowed:
        return None
    return rate_of(inside > np.sort(outside)[-1 - allowed], confidence)


def true_fpr(allowed: int, non_members: int, confidence: float = CONFIDENCE) -> Rate:
    """True false-positive rate at a threshold that exactly `allowed` non-members reach.

    For any continuous distribution of scores, this rate follows Beta(allowed + 1, non_members - allowed). We return
    its mean, with quantiles as the interval. Useless scores have the same TPR at this threshold.
    """
    a, b, tail = allowed + 1, non_members - allowed, (1 - confidence) / 2
    return Rate(a / (a + b), (float(betaincinv(a, b, tail)), float(betaincinv(a, b, 1 - tail))))


def advantage(members: ArrayLike, non_members: ArrayLike) -> float:
    """Largest difference TPR - FPR over all thresholds; at least 0, because a high threshold accepts no utterance.

    This value describes the given scores and is not an estimate, so it has no interval. The best threshold is chosen
    afterwards, which biases the value upwards, especially with few utterances: even useless scores do not yield 0.
    """
    curve = roc(members, non_members)
    return float((curve.tpr - curve.fpr).max())


def clopper_pearson(successes: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Clopper-Pearson interval (1934): too high, or too low, each with probability at most (1 - confidence)/2."""
    tail, failures = (1 - confidence) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


def rate_of(hits: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Rate:
    """Share of true values among the `hits`, bool (n), with its interval."""
    count = int(hits.sum())
    return Rate(count / len(hits), clopper_pearson(count, len(hits), confidence))


# ---- What privacy allows ---------------------------------------------------------------------------------------------


def dp_bound(epsilon: float, delta: float) -> Bound:
    """Upper bound on any membership attack under (epsilon, delta)-DP; all bounds are 1 for an infinite epsilon.

    TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR)) (Kairouz, Oh and Viswanath 2015, theorem 2.1). The curve
    has area 1 - (1 - delta)^2 / (1 + e^eps) and exceeds the diagonal by at most (e^eps - 1 + 2 delta) / (e^eps + 1).

    Assumptions: for one utterance, the rates compare training sets that differ only in this utterance, under the same
    adjacency as epsilon (add/remove, zero-out or replace-one), whatever else the attacker knows. The region of possible
    rates is convex, so the bound also holds for rates averaged over utterances and over the draw of the others, if an
    independent fair coin decided each membership. A split of fixed size exchanges two utterances, which is replace-one.
    An utterance whose text occurs k times is a group of k. The bound is for true rates; estimates may exceed it.
    """
    check_loss("epsilon", epsilon)
    if not 0 <= delta <= 1:
        raise UsageError(f"delta is {delta}: it must be between 0 and 1")
    shrink = math.exp(-epsilon)
    area = 1 - (1 - delta) ** 2 * float(expit(-epsilon))
    gap = (2 * delta * shrink - math.expm1(-epsilon)) / (1 + shrink)

    def tpr(rates: Scores) -> Scores:
        """Bound on the TPR, computed without e^eps, which may overflow, and without differences that lose precision."""
        with np.errstate(divide="ignore"):  # log 0
            steep = np.exp(np.minimum(epsilon + np.log(rates), 0.0)) + delta
        return np.minimum(steep, -math.expm1(-epsilon) + shrink * (delta + rates))

    return _rounded_up(epsilon, area, gap, tpr)


def gaussian_bound(mu: float) -> Bound:
    """Upper bound on any membership attack under mu-GDP, the privacy of one Gaussian release.

    TPR <= Phi(Phi^-1(FPR) + mu), AUC <= Phi(mu / sqrt 2), advantage <= 2 Phi(mu / 2) - 1 (Dong, Roth and Su 2022,
    definition 4). It is tighter than `dp_bound` for any (epsilon, delta) implied by mu, under the same assumptions.
    """
    check_loss("mu", mu)
    area, gap = float(ndtr(mu / math.sqrt(2))), float(erf(mu / math.sqrt(8)))
    return _rounded_up(mu, area, gap, lambda rates: ndtr(ndtri(rates) + mu))


def _rounded_up(loss: float, area: float, gap: float, best_tpr: Callable[[Scores], Scores]) -> Bound:
    """Bound with these values, rounded up; if the privacy loss is infinite, all values are 1."""

    def tpr(fpr: ArrayLike) -> Scores:
        rates = check_rates(np.asarray(fpr, float))
        return np.ones_like(rates) if math.isinf(loss) else np.minimum(best_tpr(rates) * ROUND_UP, 1.0)

    return Bound(min(1.0, area * ROUND_UP), min(1.0, gap * ROUND_UP), tpr)


def summarise(
    attack: str,
    members: ArrayLike,
    non_members: ArrayLike,
    epsilon: float | None = None,
    delta: float | None = None,
    texts: Texts | None = None,
) -> AttackResult:
    """Compute all metrics of an attack, and the bound implied by the run's (epsilon, delta) if epsilon is finite."""
    inside, outside = _checked(members, non_members)
    tpr_by_fpr: dict[str, dict[str, Any]] = {}
    for fpr in FPRS:
        rate = tpr_at_fpr(inside, outside, fpr)
        if rate is None:
            needed = f"needs at least {math.ceil(1 / fpr - 1e-9):,} non-members, but there are {len(outside):,}"
            tpr_by_fpr[f"{fpr:g}"] = {"value": None, "why": f"an FPR of {fpr:g} {needed}"}
        else:
            guessing = true_fpr(_allowed(len(outside), fpr), len(outside))
            tpr_by_fpr[f"{fpr:g}"] = {**rate._asdict(), "guessing": guessing._asdict()}
    bound = None
    if epsilon is not None and epsilon != math.inf:
        if delta is None:
            raise UsageError(f"epsilon {epsilon:g} has no delta: give both, or neither for a run without a guarantee")
        most = dp_bound(epsilon, delta)
        rates = {f"{fpr:g}": float(most.tpr(fpr)) for fpr in FPRS}
        limits = {"auc": most.auc, "tpr_at_fpr": rates, "advantage": most.advantage}
        bound = {"epsilon": epsilon, "delta": delta, **limits}
    return AttackResult(
        attack,
        auc=auc(inside, outside),
        auc_interval=auc_interval(inside, outside, texts=texts),
        tpr_at_fpr=tpr_by_fpr,
        advantage=advantage(inside, outside),
        bound=bound,
        members=len(inside),
        non_members=len(outside),
        confidence=CONFIDENCE,
        roc=roc(inside, outside),
    )


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}: it must be between 0 and 1, such as 0.95")


def _checked(members: ArrayLike, non_members: ArrayLike) -> tuple[Scores, Scores]:
    inside, outside = np.asarray(members, float), np.asarray(non_members, float)
    for side, scores in (("members", inside), ("non-members", outside)):
        if scores.ndim != 1 or not scores.size:
            raise UsageError(
                f"the scores of the {side} have shape {scores.shape}: use a 1-D array with at least one number"
            )
        if undefined := int(np.isnan(scores).sum()):
            raise UsageError(f"{undefined} of the {side}' scores are NaN: fix the attack or the model")
    return inside, outside


def _allowed(non_members: int, fpr: float) -> int:
    """Number of non-members allowed at this rate. Compares quotients, because 0.29 * 100 is below 29 in floats."""
    return int(np.searchsorted(np.arange(non_members + 1) / non_members, fpr, side="right")) - 1


def _placements(members: Scores, non_members: Scores) -> tuple[Scores, Scores]:
    """Share of non-members below each member (M), and of members above each non-member (N), plus half of the ties."""

    def share_below(scores: Scores, others: Scores) -> Scores:
        rows = np.sort(others)
        return (np.searchsorted(rows, scores, "left") + np.searchsorted(rows, scores, "right")) / (2 * len(rows))

    return share_below(members, non_members), 1 - share_below(non_members, members)


def _half_width(sides: Sequence[Scores], texts: Texts | None, confidence: float) -> float:
    """Half-width of the normal interval for a sum of means, where only values of different texts are independent."""
    variance = 0.0
    for values, of in zip(sides, texts or (None, None), strict=True):
        if of is not None:
            sums = np.bincount(np.unique(np.asarray(of), return_inverse=True)[1], weights=values - values.mean())
            variance += float((sums**2).sum()) / len(values) ** 2 * len(sums) / max(len(sums) - 1, 1)
        elif len(values) > 1:
            variance += float(values.var(ddof=1)) / len(values)
    return float(-ndtri((1 - confidence) / 2) * math.sqrt(variance))


# ---- Lower bounds on epsilon: from the error rates of one step -------------------------------------------------------


@dataclass(frozen=True)
class ErrorRate:
    """Number of wrong guesses, and the Clopper-Pearson upper limit of the error probability."""

    errors: int
    upper_limit: float


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on epsilon at one delta, from the same two error rates; see `lower_bounds`."""

    gaussian: float
    distribution_free: float


def error_rate(wrong: np.ndarray, confidence: float) -> ErrorRate:
    """Count the `wrong` guesses, (draws) bool, and compute the upper limit of the error probability."""
    errors = int(wrong.sum())
    return ErrorRate(errors, upper_limit(errors, len(wrong), confidence))


def upper_limit(errors: int, draws: int, confidence: float) -> float:
    """Upper end of the `clopper_pearson` interval of an error probability, rounded up.

    It is too low with probability at most (1 - confidence)/2, so two such limits hold together at `confidence`.
    """
    if errors == draws:
        return 1.0
    return min(1.0, float(betainccinv(errors + 1, draws - errors, (1 - confidence) / 2)) * (1 + 1e-9))


def mu_lower_bound(fpr: float, fnr: float) -> float:
    """Lower bound Phi^-1(1 - FPR) - Phi^-1(FNR) on mu, from upper limits of both rates; at least 0.

    Guarantee: valid for any threshold if the limits hold and both sides are Gaussian with the same covariance, like the
    step's output. Along any direction, the distance of the means divided by the standard deviation is at most mu.
    """
    return max(0.0, float(-ndtri(fpr) - ndtri(fnr)))


def lower_bounds(fpr: float, fnr: float, delta: float) -> Bounds:
    """Lower bounds on epsilon from upper limits of both error rates, with the same confidence; rounded down.

    `gaussian` is the epsilon of `mu_lower_bound`. `distribution_free` holds for any mechanism: (epsilon, delta)-DP
    requires 1 - FNR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon FNR + delta (Kairouz, Oh and Viswanath 2015).
    """
    gaussian = measured_epsilon(mu_lower_bound(fpr, fnr), delta)
    odds = max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)
    return Bounds(gaussian, max(0.0, math.log(odds) - 1e-12) if odds > 1 else 0.0)


def measured_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism with at least this mu, rounded down."""
    # gdp_epsilon rounds up by a relative error below 1e-11 or, for tiny values, by an absolute error below 1e-11.
    return max(0.0, gdp_epsilon(mu, delta) * (1 - 1e-11) - 1e-11)


# ---- Lower bounds on epsilon: from the guesses of one run ------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Number of guesses and of correct guesses."""

    guesses: int
    correct: int


@dataclass(frozen=True)
class OneRunBounds:
    """Lower bounds on epsilon at one delta, each at the full confidence, from the same guesses."""

    distribution_free: float  # for any mechanism, by Steinke, Nasr and Jagielski
    mu: float | None  # lower bound on mu by `one_run_mu`; None for a non-Gaussian mechanism
    gaussian: float | None  # epsilon at this mu
    tally: Tally  # from which `gaussian` is computed, or `distribution_free` if `gaussian` is None

    @property
    def best(self) -> float:
        """The bound to report; the choice depends on the mechanism, not on the guesses."""
        return self.distribution_free if self.gaussian is None else self.gaussian


def make_guesses(scores: np.ndarray, included: np.ndarray) -> tuple[Tally, ...]:
    """Guess "in" for the highest and "out" for the lowest scores, once for each share of canaries in `SHARES`.

    Args:
        scores: (m) higher for canaries that seem to be in.
        included: (m) bool, whether each canary was in. Neither this nor the scores affect the number of guesses.
    """
    truth, m, tallies = included[np.argsort(scores, kind="stable")], len(scores), []
    for r in sorted({max(1, round(share * m)) for share in SHARES}):
        lowest, highest = truth[: r // 2], truth[m - (r - r // 2) :]
        tallies.append(Tally(r, int((~lowest).sum() + highest.sum())))
    return tuple(tallies)


def one_run_bounds(m: int, tallies: Sequence[Tally], delta: float, confidence: float, gaussian: bool) -> OneRunBounds:
    """The best bounds from several tallies, each of which gets an equal share of the error probability.

    Guarantee: if flipping any one canary yields a neighbour under the mechanism's adjacency, the mechanism's epsilon at
    `delta` is below `distribution_free` with probability at most 1 - `confidence`. The same is true for `gaussian` if
    the mechanism is mu-GDP for some mu, and epsilon is computed from mu (as with Gaussian noise and disjoint batches).
    """
    beta = (1 - confidence) / len(tallies)
    epsilons = [one_run_epsilon(m, t.guesses, t.correct, delta, beta) for t in tallies]
    free = max(epsilons)
    if not gaussian:
        return OneRunBounds(free, None, None, tallies[epsilons.index(free)])
    mus = [one_run_mu(m, t.guesses, t.correct, beta) for t in tallies]
    mu = max(mus)
    return OneRunBounds(free, mu, measured_epsilon(mu, delta), tallies[mus.index(mu)])


def one_run_epsilon(m: int, r: int, v: int, delta: float, beta: float) -> float:
    """Largest epsilon that v correct of r guesses on m canaries refute at significance beta; 0 if there is none.

    With q = e^eps / (1 + e^eps) and X ~ Bin(r, q), v or more guesses on an (eps, delta)-DP mechanism are correct with
    probability

        at most p = P[X >= v] + 2 m delta max_{1 <= i <= v} P[v > X >= v - i] / i

    (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2). All epsilons below
    the first with p >= beta are refuted. The result is rounded down. Reference values at beta 0.05: (1000, 100, 75,
    1e-4) -> 0.673, (100000, 1510, 1439, 1e-5) -> 2.676. Guarantee: valid however the guesses and their positions depend
    on the mechanism's releases, as long as r is fixed beforehand.
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
        # A weight above 1 also multiplies P[X >= v]: slightly more than the theorem requires, but p rises with epsilon.
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
    """Largest mu for which v correct of r guesses on m canaries refute mu-GDP at significance beta; 0 if there is none.

    Let W be the number of correct guesses and p_i = P[W = i]; abstentions are neither right nor wrong. For any j, if
    guess k is right and W >= j, then at least j - 1 other guesses are right. If canary k were flipped, guess k would be
    wrong, and W >= j - 1 would still hold. mu-GDP bounds the probability of the first event by F(x) = Phi(Phi^-1(x) +
    mu) at the probability x of the second. F is concave, so averaging over all canaries and other randomness yields

        a_j <= F(b_{j-1}),     a_j = sum_{i >= j} p_i i / m,     b_j = sum_{i >= j} p_i (r - i) / m

    as argued by Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run".
    Suppose P[W >= v] = beta. The total probability is smallest if all of beta is at v and, going down, each j - 1 has
    only as much as the inequality requires (moving a surplus further down helps all remaining inequalities). If even
    this total exceeds 1, P[W >= v] is below beta, and v correct guesses refute mu.

    Guarantee: as for `one_run_epsilon`, for a mu-GDP mechanism. The result is rounded down.
    """
    _check_counts(m, r, v, beta)

    def least_total(mu: np.ndarray) -> np.ndarray:
        """Smallest total compatible with P[W >= v] = beta, or any number above 1 if it exceeds 1: (K) -> (K)."""
        right, wrong = np.full(mu.shape, v * beta / m), np.full(mu.shape, (r - v) * beta / m)  # a_j, b_j
        for j in range(v, 0, -1):
            demanded = ndtr(ndtri(np.minimum(right, 1)) - mu)
            added = np.maximum(demanded - wrong, 0) / (r - j + 1)  # p_{j-1} / m
            right, wrong = right + added * (j - 1), wrong + added * (r - j + 1)
            if not ((added > 0) & ((right + wrong) * m <= 2 * r)).any():  # no further mass is required
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
        raise UsageError(f"{v} right of {r} guesses on {m} canaries is impossible: v <= r <= m must hold")
    if not 0 < beta < 1:
        raise UsageError(f"significance beta is {beta}: it must be between 0 and 1, such as 0.05")
