"""Figures of an attack with their intervals, bounds that privacy sets to any attack, lower bounds on epsilon. No torch.

Scores are 1-D arrays, one number per utterance, higher for "member"; infinite ones are welcome, NaN is refused. A
threshold t calls every utterance with a score of at least t a member: TPR is the share of members so called, FPR the
share of non-members. All intervals take the utterances of each side for independent draws, given the trained model:
they say how far other utterances would move the figure, not what another training run would. Copies of one text are
no independent draws: on ATIS, where 7 % are copies, the interval of an AUC is therefore about 10 % too narrow. A side
without scores, and whatever is out of range, is refused by `UsageError`.

An audit turns guesses into lower bounds on epsilon. From draws of one step with and without a canary come two error
rates, and from these a bound. From one run with m canaries, each in the training set with chance 1/2, come r guesses,
"in" or "out", and abstentions on the others; v guesses are right. More right guesses than the claimed privacy allows
refute it.
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
LEAST_MEMBERS = 50  # on either side; fewer give intervals too wide to say anything
CONFIDENCE = 0.95  # of intervals, unless another is given
ROUND_UP = 1 + 1e-11  # beyond the rounding of any bound here: `ndtri` far out in the tail has the most

SHARES = (0.1, 0.3, 1.0)  # of the canaries, on which guesses are made: extreme scores are surer, many guesses say more
SLACK = 1e-6  # relative, far above what rounding adds to a probability here
LARGEST_MU = 64.0
GRID = 32  # intervals into which the search for mu cuts what is left; five times


class Roc(NamedTuple):
    """The ROC curve at every distinct threshold, from (0, 0) to (1, 1); a tie of both sides raises both rates."""

    fpr: Scores  # (T) ascending
    tpr: Scores


class Rate(NamedTuple):
    """A share and its Clopper-Pearson interval."""

    value: float
    interval: Interval


class Bound(NamedTuple):
    """The most that any attack can reach; see `dp_bound` for when it applies. Rounded up."""

    auc: float
    advantage: float
    tpr: Callable[[ArrayLike], Scores]  # at false-positive rates in [0, 1]: a number or (F) -> the same shape


@dataclass(frozen=True)
class AttackResult:
    """Figures of one attack: how well its scores separate members from non-members."""

    attack: str
    auc: float
    auc_interval: Interval
    # By FPR, such as "0.01": {"value", "interval", "guessing"}, or {"value": None, "why"} with too few non-members.
    tpr_at_fpr: dict[str, dict[str, Any]]
    advantage: float  # max TPR - FPR, biased upwards (see `advantage`)
    bound: dict[str, Any] | None  # "epsilon", "delta", and `dp_bound`: "auc", "tpr_at_fpr", "advantage"; None without
    members: int
    non_members: int
    confidence: float
    roc: Roc = field(repr=False, compare=False)  # for figures

    def to_json(self) -> dict[str, Any]:
        """All fields but the curve, for `json.dumps`."""
        return {name: value for name, value in vars(self).items() if name != "roc"}


# ---- From scores to figures ------------------------------------------------------------------------------------------


def roc(members: ArrayLike, non_members: ArrayLike) -> Roc:
    """The ROC curve of the scores."""
    inside, outside = _checked(members, non_members)
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    fpr, tpr = (
        np.append(0.0, (len(side) - np.searchsorted(np.sort(side), thresholds)) / len(side))
        for side in (outside, inside)
    )
    return Roc(fpr, tpr)


def auc(members: ArrayLike, non_members: ArrayLike) -> float:
    """The area under the ROC curve: how often a member scores above a non-member, ties counted half."""
    return float(_placements(*_checked(members, non_members))[0].mean())


def auc_interval(
    members: ArrayLike, non_members: ArrayLike, confidence: float = CONFIDENCE, texts: Texts | None = None
) -> Interval:
    """An interval for the AUC, within [0, 1] and never of width zero.

    DeLong's variance (DeLong, DeLong and Clarke-Pearson 1988), by sorting in O(n log n) as Sun and Xu 2014, normal on
    the logit scale. Asymptotic: at 95 % it covered the AUC of normal scores in 93 to 97 % of simulations up to AUC 0.9
    (20 to 1,000 a side) and, with equal sides, up to 0.99; but in 86 % at 0.999 with 50 members, 1,000 non-members.

    If that variance is 0 (all pairs right, all wrong, or all scores equal) or not defined (one utterance on a side):
    Clopper-Pearson for k = min(members, non-members) pairs, AUC x k of them right. That is conservative: k disjoint
    pairs are independent, each right with probability at most the AUC, and the sample's other pairs only add to them.

    Args:
        texts: for each side, numbers of its utterances' texts. Copies score alike, so they are taken together
            (Obuchowski 1997). None: all texts differ.
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

    With k non-members allowed, the threshold is just above the (k + 1)-th highest non-member, whatever the members
    score: the Clopper-Pearson interval is exact for the TPR *at this threshold*. It does not cover the uncertainty of
    the FPR there, see `true_fpr`: about twice `fpr` if just one is allowed.
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
    """The false-positive rate at a threshold that accuses at most `allowed` of the non-members.

    With continuous scores it follows Beta(allowed + 1, non_members - allowed), whatever the scores: its mean, and its
    quantiles as the interval. It is also the TPR that useless scores have there.
    """
    a, b, tail = allowed + 1, non_members - allowed, (1 - confidence) / 2
    return Rate(a / (a + b), (float(betaincinv(a, b, tail)), float(betaincinv(a, b, 1 - tail))))


def advantage(members: ArrayLike, non_members: ArrayLike) -> float:
    """The largest TPR - FPR; at least 0, its value if nobody is called a member.

    A description of these scores, no estimate: the best threshold is picked after the fact, so the value is biased
    upwards, the more so the fewer the utterances, and useless scores do not give 0. Hence no interval.
    """
    curve = roc(members, non_members)
    return float((curve.tpr - curve.fpr).max())


def clopper_pearson(successes: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Interval of a probability, too high or too low with probability (1 - confidence)/2 each at most (1934)."""
    tail, failures = (1 - confidence) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


def rate_of(hits: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Rate:
    """The share of hits, bool (n), with its interval."""
    count = int(hits.sum())
    return Rate(count / len(hits), clopper_pearson(count, len(hits), confidence))


# ---- What privacy allows ---------------------------------------------------------------------------------------------


def dp_bound(epsilon: float, delta: float) -> Bound:
    """The highest rates of any membership attack under (epsilon, delta)-DP; all 1 at epsilon inf.

    TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR)) (Kairouz, Oh and Viswanath 2015, theorem 2.1); the area
    under that is 1 - (1 - delta)^2 / (1 + e^eps), its distance from the diagonal (e^eps - 1 + 2 delta) / (e^eps + 1).

    Assumptions: for one utterance, the rates compare training sets that differ in this utterance alone, in the way
    (add/remove, zero-out, replace-one) that the epsilon is stated for, whatever else the attacker knows. The region is
    convex, so it also holds for rates averaged over utterances and over how the rest was drawn, if an independent fair
    coin decided each membership. A split of fixed size swaps one utterance for another, which is replace-one; an
    utterance whose text occurs k times is a group of k. It bounds true rates: an estimate may exceed it by chance.
    """
    check_loss("epsilon", epsilon)
    if not 0 <= delta <= 1:
        raise UsageError(f"delta is {delta}: it must be between 0 and 1")
    shrink = math.exp(-epsilon)
    area = 1 - (1 - delta) ** 2 * float(expit(-epsilon))
    gap = (2 * delta * shrink - math.expm1(-epsilon)) / (1 + shrink)

    def tpr(rates: Scores) -> Scores:
        """Avoids e^eps, which may overflow, and differences, which may cancel."""
        with np.errstate(divide="ignore"):  # log 0
            steep = np.exp(np.minimum(epsilon + np.log(rates), 0.0)) + delta
        return np.minimum(steep, -math.expm1(-epsilon) + shrink * (delta + rates))

    return _rounded_up(epsilon, area, gap, tpr)


def gaussian_bound(mu: float) -> Bound:
    """The highest rates of any membership attack under mu-GDP, that is on one Gaussian release.

    TPR <= Phi(Phi^-1(FPR) + mu), AUC <= Phi(mu / sqrt 2), advantage <= 2 Phi(mu / 2) - 1 (Dong, Roth and Su 2022,
    definition 4). Tighter than `dp_bound` at any (epsilon, delta) of that mu; the same assumptions.
    """
    check_loss("mu", mu)
    area, gap = float(ndtr(mu / math.sqrt(2))), float(erf(mu / math.sqrt(8)))
    return _rounded_up(mu, area, gap, lambda rates: ndtr(ndtri(rates) + mu))


def _rounded_up(loss: float, area: float, gap: float, best_tpr: Callable[[Scores], Scores]) -> Bound:
    """The bound with these figures, rounded up; an infinite privacy loss bounds no rate."""

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
    """All figures of an attack, beside the bound of the run's sound (epsilon, delta), if it has a finite epsilon."""
    inside, outside = _checked(members, non_members)
    tpr_by_fpr: dict[str, dict[str, Any]] = {}
    for fpr in FPRS:
        rate = tpr_at_fpr(inside, outside, fpr)
        if rate is None:
            needed = f"needs at least {math.ceil(1 / fpr - 1e-9):,} non-members, and there are {len(outside):,}"
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
                f"the scores of the {side} have shape {scores.shape}: give one number per utterance, at least 1"
            )
        if undefined := int(np.isnan(scores).sum()):
            raise UsageError(f"{undefined} of the {side}' scores are NaN: fix the attack, or its model")
    return inside, outside


def _allowed(non_members: int, fpr: float) -> int:
    """Number of non-members that pass at that rate; compared as quotients, since 0.29 * 100 is below 29 in floats."""
    return int(np.searchsorted(np.arange(non_members + 1) / non_members, fpr, side="right")) - 1


def _placements(members: Scores, non_members: Scores) -> tuple[Scores, Scores]:
    """The share of non-members below each member (M), of members above each non-member (N); ties count half."""

    def share_below(scores: Scores, others: Scores) -> Scores:
        rows = np.sort(others)
        return (np.searchsorted(rows, scores, "left") + np.searchsorted(rows, scores, "right")) / (2 * len(rows))

    return share_below(members, non_members), 1 - share_below(non_members, members)


def _half_width(sides: Sequence[Scores], texts: Texts | None, confidence: float) -> float:
    """Half the normal interval of a sum of means, each of values that are independent only from text to text."""
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
    """Number of wrong guesses, and the Clopper-Pearson upper limit of the probability of that error."""

    errors: int
    upper_limit: float


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on epsilon at one delta, from the same two error rates; see `lower_bounds`."""

    gaussian: float
    distribution_free: float


def error_rate(wrong: np.ndarray, confidence: float) -> ErrorRate:
    """Count the guesses that were `wrong`, (draws) bool, and limit the probability of that error."""
    errors = int(wrong.sum())
    return ErrorRate(errors, upper_limit(errors, len(wrong), confidence))


def upper_limit(errors: int, draws: int, confidence: float) -> float:
    """The upper end of `clopper_pearson` of an error probability, rounded up.

    Wrong with probability (1 - confidence)/2 at most, so two such limits hold jointly at `confidence`.
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
    gaussian = measured_epsilon(mu_lower_bound(fpr, fnr), delta)
    odds = max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)
    return Bounds(gaussian, max(0.0, math.log(odds) - 1e-12) if odds > 1 else 0.0)


def measured_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism with at least that mu, rounded down."""
    # gdp_epsilon rounds up by less than 1e-11 of itself and, if it is tiny, by less than 1e-11.
    return max(0.0, gdp_epsilon(mu, delta) * (1 - 1e-11) - 1e-11)


# ---- Lower bounds on epsilon: from the guesses of one run ------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Number of guesses, and of right ones."""

    guesses: int
    correct: int


@dataclass(frozen=True)
class OneRunBounds:
    """Lower bounds on epsilon at one delta, each at the whole confidence, from the same guesses."""

    distribution_free: float  # of Steinke, Nasr and Jagielski, for any mechanism
    mu: float | None  # of `one_run_mu`, and the epsilon it means; None for a mechanism that is not Gaussian
    gaussian: float | None
    tally: Tally  # behind `gaussian`, or behind `distribution_free` if that is None

    @property
    def best(self) -> float:
        """The valid bound, chosen by the mechanism and not by the guesses."""
        return self.distribution_free if self.gaussian is None else self.gaussian


def make_guesses(scores: np.ndarray, included: np.ndarray) -> tuple[Tally, ...]:
    """Guess "in" for the highest and "out" for the lowest scores, on each of `SHARES` of the canaries.

    Args:
        scores: (m) higher for canaries that look as if they were in.
        included: (m) bool, the truth. How many guesses are made does not depend on it, nor on the scores.
    """
    truth, m, tallies = included[np.argsort(scores, kind="stable")], len(scores), []
    for r in sorted({max(1, round(share * m)) for share in SHARES}):
        lowest, highest = truth[: r // 2], truth[m - (r - r // 2) :]
        tallies.append(Tally(r, int((~lowest).sum() + highest.sum())))
    return tuple(tallies)


def one_run_bounds(m: int, tallies: Sequence[Tally], delta: float, confidence: float, gaussian: bool) -> OneRunBounds:
    """The best bounds that several tallies give; each of them gets its share of the error.

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
    return OneRunBounds(free, mu, measured_epsilon(mu, delta), tallies[mus.index(mu)])


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
    and at least j - 1 of the others are right. If canary k were flipped, the same guesses would have k wrong, W >= j-1.
    mu-GDP bounds the one probability by F(x) = Phi(Phi^-1(x) + mu) of the other. F is concave, so averaged over the m
    canaries and all the rest (an abstention is neither right nor wrong)

        a_j <= F(b_{j-1}),     a_j = sum_{i >= j} p_i i / m,     b_j = sum_{i >= j} p_i (r - i) / m

    which is the argument of Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run".
    Suppose P[W >= v] = beta. The least total probability that goes with it has all of beta at v and, from there
    downwards, just as much at each j - 1 as the inequality demands (moved further down, a surplus helps every
    inequality that is left). If that total exceeds 1, P[W >= v] is below beta, and v right guesses refute mu.

    Guarantee: a mu-GDP mechanism, guesses and their places as in `one_run_epsilon`. Rounded down.
    """
    _check_counts(m, r, v, beta)

    def least_total(mu: np.ndarray) -> np.ndarray:
        """The total that P[W >= v] = beta demands; some number above 1 if that exceeds 1: (K) -> (K)."""
        right, wrong = np.full(mu.shape, v * beta / m), np.full(mu.shape, (r - v) * beta / m)  # a_j, b_j
        for j in range(v, 0, -1):
            demanded = ndtr(ndtri(np.minimum(right, 1)) - mu)
            added = np.maximum(demanded - wrong, 0) / (r - j + 1)  # p_{j-1} / m
            right, wrong = right + added * (j - 1), wrong + added * (r - j + 1)
            if not ((added > 0) & ((right + wrong) * m <= 2 * r)).any():  # no further demand follows
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
        raise UsageError(f"significance beta is {beta}: it must be between 0 and 1, such as 0.05")
