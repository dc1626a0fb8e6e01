"""What an attack's scores show, with intervals, what privacy would have let any attack reach, and whether it counts.

Scores are 1-D arrays, one number per utterance, higher for "member"; infinite ones are welcome, NaN is refused. A
threshold t calls every utterance with a score of at least t a member: TPR is the share of members so called, FPR the
share of non-members. All intervals take the utterances of each side for independent draws, given the trained model:
they say how far other utterances would move the figure, not what another training run would. Copies of one text are
no independent draws: on ATIS, where 7 % are copies, the interval of an AUC is therefore about 10 % too narrow. A side
without scores, and whatever is out of range, is refused by `UsageError`.

An attack counts if the texts alone do not tell members from non-members (`check_split`): else it would need no model,
and its success would show how the split was made, not what the model remembers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, erf, expit, logit, ndtr, ndtri

from edp_lab.corpora.corpus import Utterance
from edp_lab.errors import UsageError
from edp_lab.privacy.accountants import check_loss, check_rates

Scores = NDArray[np.float64]
Interval = tuple[float, float]
Texts = tuple[ArrayLike, ArrayLike]
FPRS = (0.01, 0.001)
CONFIDENCE = 0.95  # of intervals, unless another is given
ROUND_UP = 1 + 1e-11  # beyond the rounding of any bound here: `ndtri` far out in the tail has the most

LEAST_MEMBERS = 50  # on either side; fewer give intervals too wide to say anything
FOLDS = 5
SPLIT_CONFIDENCE = 0.99  # an alarm of `check_split` is false about once in a hundred splits


class Roc(NamedTuple):
    """The ROC curve, every distinct threshold, from (0, 0) to (1, 1)."""

    fpr: Scores  # (T) ascending; where a member and a non-member tie, both rates rise at once
    tpr: Scores
    thresholds: Scores  # (T) descending; the first, inf, stands for calling nobody a member


class Rate(NamedTuple):
    """A share and its Clopper-Pearson interval."""

    value: float
    interval: Interval


class Bound(NamedTuple):
    """The most that any attack can reach; see `dp_bound` for when it applies. Rounded up.

    `tpr` is the most true positives at a false-positive rate in [0, 1]: a number or (F) -> the same shape.
    """

    auc: float
    advantage: float
    tpr: Callable[[ArrayLike], Scores]


@dataclass(frozen=True)
class AttackResult:
    """How well one attack told members from non-members."""

    attack: str
    auc: float
    auc_interval: Interval
    # By FPR, such as "0.01": {"value", "interval", "guessing"}, or {"value": None, "why"} with too few non-members.
    tpr_at_fpr: dict[str, dict[str, Any]]
    advantage: float  # max TPR - FPR, biased upwards (see `advantage`)
    bound: dict[str, Any] | None  # "epsilon", "delta", and `dp_bound`: "auc", "tpr_at_fpr", "advantage"; None without
    guards: dict[str, Any]  # what the sanity guards found; empty where none ran
    members: int
    non_members: int
    confidence: float
    roc: Roc = field(repr=False, compare=False)  # for figures

    def to_json(self) -> dict[str, Any]:
        """Everything but the curve, for `json.dumps`."""
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
    return Roc(fpr, tpr, np.append(np.inf, thresholds))


def auc(members: ArrayLike, non_members: ArrayLike) -> float:
    """The area under the ROC curve: how often a member scores above a non-member, ties counted half."""
    return float(_placements(*_checked(members, non_members))[0].mean())


def auc_interval(
    members: ArrayLike, non_members: ArrayLike, confidence: float = CONFIDENCE, texts: Texts | None = None
) -> Interval:
    """An interval for the AUC, within [0, 1] and never of width zero.

    `texts`: for members and for non-members the number of each one's text. Copies score alike, and say no more than
    one of them does; they are taken together (Obuchowski 1997). None: all texts differ.

    DeLong's variance (DeLong, DeLong and Clarke-Pearson 1988), by sorting in O(n log n) as Sun and Xu 2014, normal on
    the logit scale. Asymptotic: at 95 % it covered the AUC of normal scores in 93 to 97 % of simulations up to AUC 0.9
    (20 to 1,000 a side) and, with equal sides, up to 0.99; but in 86 % at 0.999 with 50 members, 1,000 non-members.

    Where that variance is 0 (all pairs right, all wrong, or all scores equal) or not defined (one utterance on a
    side): Clopper-Pearson for k = min(members, non-members) pairs, AUC x k of them right. That is conservative: k
    disjoint pairs of a member and a non-member are independent, each right with probability at most the AUC, and the
    sample's other pairs only add to what is known. At AUC 1 the lower end is (alpha / 2)^(1/k).
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


def auc_change(
    before: Texts, after: Texts, confidence: float = CONFIDENCE, texts: Texts | None = None
) -> tuple[float, Interval]:
    """AUC after / AUC before - 1, and its interval: two models, the same members and non-members in the same order.

    DeLong's covariance of the two areas, normal on the scale of the logarithm; asymptotic. That both attacks saw the
    same utterances makes the interval narrower than that of two independent areas.
    """
    check_confidence(confidence)
    one, other = _checked(*before), _checked(*after)
    if [len(side) for side in one] != [len(side) for side in other]:
        raise UsageError("the two attacks scored other numbers of utterances: compare them on the same ones")
    placed, then = _placements(*one), _placements(*other)
    areas = float(placed[0].mean()), float(then[0].mean())
    if min(areas) == 0:
        raise UsageError(
            "an AUC of 0 has no relative change: its attack has members and non-members the wrong way round"
        )
    influences = [b / areas[1] - a / areas[0] for a, b in zip(placed, then, strict=True)]
    ratio, reach = areas[1] / areas[0], _half_width(influences, texts, confidence)
    return ratio - 1, (ratio * math.exp(-reach) - 1, ratio * math.exp(reach) - 1)


def tpr_at_fpr(members: ArrayLike, non_members: ArrayLike, fpr: float, confidence: float = CONFIDENCE) -> Rate | None:
    """The largest TPR among thresholds whose empirical FPR is at most `fpr`; None where fpr x non-members < 1.

    With k non-members allowed, the threshold lies just above the (k + 1)-th highest non-member, so the members have
    no say in it: the Clopper-Pearson interval is exact for the TPR *at this threshold*. It does not cover the
    uncertainty of the FPR there, see `true_fpr`: it is about twice `fpr` where just one is allowed.
    """
    inside, outside = _checked(members, non_members)
    check_confidence(confidence)
    if not 0 < fpr < 1:
        raise UsageError(f"the false-positive rate is {fpr}: it must lie between 0 and 1, such as 0.01")
    allowed = _allowed(len(outside), fpr)
    if not allowed:
        return None
    return rate_of(inside > np.sort(outside)[-1 - allowed], confidence)


def true_fpr(allowed: int, non_members: int, confidence: float = CONFIDENCE) -> Rate:
    """What the false-positive rate may be at a threshold that lets `allowed` of the non-members pass, and no more.

    With continuous scores it follows Beta(allowed + 1, non_members - allowed), whatever the scores: its mean, and its
    quantiles as the interval. It is also the TPR that useless scores have there.
    """
    a, b, tail = allowed + 1, non_members - allowed, (1 - confidence) / 2
    return Rate(a / (a + b), (float(betaincinv(a, b, tail)), float(betaincinv(a, b, 1 - tail))))


def advantage(members: ArrayLike, non_members: ArrayLike) -> float:
    """The largest TPR - FPR: at least 0, where nobody is called a member.

    A description of these scores, no estimate: the best threshold is picked after the fact, so the value is biased
    upwards, the more so the fewer the utterances, and useless scores do not give 0. Hence no interval.
    """
    curve = roc(members, non_members)
    return float((curve.tpr - curve.fpr).max())


def clopper_pearson(successes: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """The interval of a probability, missing it on either side with probability (1 - confidence)/2 at most.

    Source: Clopper and Pearson 1934.
    """
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
    """The most that (epsilon, delta)-DP lets any membership attack reach; all 1 at epsilon inf.

    TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR)) (Kairouz, Oh and Viswanath 2015, theorem 2.1); the area
    under that is 1 - (1 - delta)^2 / (1 + e^eps), its distance from the diagonal (e^eps - 1 + 2 delta) / (e^eps + 1).

    Assumptions: for one utterance, the rates compare training sets that differ in this utterance alone, in the way
    (add/remove, zero-out, replace-one) that the epsilon is stated for, whatever else the attacker knows. The region is
    convex, so it also holds for rates averaged over utterances and over how the rest was drawn, if a fair coin of its
    own decided each one's membership. A split of fixed size swaps one utterance for another, which is replace-one; an
    utterance whose text occurs k times is a group of k. It bounds true rates: an estimate may exceed it by chance.
    """
    check_loss("epsilon", epsilon)
    if not 0 <= delta <= 1:
        raise UsageError(f"delta is {delta}: it must lie between 0 and 1")
    shrink = math.exp(-epsilon)
    area = 1 - (1 - delta) ** 2 * float(expit(-epsilon))
    gap = (2 * delta * shrink - math.expm1(-epsilon)) / (1 + shrink)

    def tpr(fpr: ArrayLike) -> Scores:
        """Without e^eps, which may overflow, and without differences, which may cancel."""
        rates = check_rates(np.asarray(fpr, float))
        if epsilon == math.inf:
            return np.ones_like(rates)
        with np.errstate(divide="ignore"):  # log 0
            steep = np.exp(np.minimum(epsilon + np.log(rates), 0.0)) + delta
        flat = -math.expm1(-epsilon) + shrink * (delta + rates)
        return np.minimum(np.minimum(steep, flat) * ROUND_UP, 1.0)

    return Bound(min(1.0, area * ROUND_UP), min(1.0, gap * ROUND_UP), tpr)


def gaussian_bound(mu: float) -> Bound:
    """The most that mu-GDP, as of one Gaussian release, lets any membership attack reach.

    TPR <= Phi(Phi^-1(FPR) + mu), AUC <= Phi(mu / sqrt 2), advantage <= 2 Phi(mu / 2) - 1 (Dong, Roth and Su 2022,
    definition 4). Tighter than `dp_bound` at any (epsilon, delta) of that mu; the same assumptions.
    """
    check_loss("mu", mu)
    area, gap = float(ndtr(mu / math.sqrt(2))), float(erf(mu / math.sqrt(8)))

    def tpr(fpr: ArrayLike) -> Scores:
        rates = check_rates(np.asarray(fpr, float))
        return np.ones_like(rates) if math.isinf(mu) else np.minimum(ndtr(ndtri(rates) + mu) * ROUND_UP, 1.0)

    return Bound(min(1.0, area * ROUND_UP), min(1.0, gap * ROUND_UP), tpr)


def summarise(
    attack: str,
    members: ArrayLike,
    non_members: ArrayLike,
    epsilon: float | None = None,
    delta: float | None = None,
    guards: Mapping[str, Any] | None = None,
    texts: Texts | None = None,
) -> AttackResult:
    """All figures of an attack, beside the bound of the run's sound (epsilon, delta), if it has a finite epsilon."""
    inside, outside = _checked(members, non_members)
    area, interval, there = auc(inside, outside), auc_interval(inside, outside, texts=texts), len(outside)
    found: dict[str, dict[str, Any]] = {}
    for fpr in FPRS:
        rate = tpr_at_fpr(inside, outside, fpr)
        if rate is None:
            needed = f"needs at least {math.ceil(1 / fpr - 1e-9):,} non-members, and there are {there:,}"
            found[f"{fpr:g}"] = {"value": None, "why": f"an FPR of {fpr:g} {needed}"}
        else:
            guessing = true_fpr(_allowed(there, fpr), there)
            found[f"{fpr:g}"] = {**rate._asdict(), "guessing": guessing._asdict()}
    bound = None
    if epsilon is not None and epsilon != math.inf:
        if delta is None:
            raise UsageError(f"epsilon {epsilon:g} has no delta: give both, or neither for a run without a guarantee")
        most = dp_bound(epsilon, delta)
        rates = {f"{fpr:g}": float(most.tpr(fpr)) for fpr in FPRS}
        limits = {"auc": most.auc, "tpr_at_fpr": rates, "advantage": most.advantage}
        bound = {"epsilon": epsilon, "delta": delta, **limits}
    best, sides, curve = advantage(inside, outside), (len(inside), there), roc(inside, outside)
    return AttackResult(attack, area, interval, found, best, bound, dict(guards or {}), *sides, CONFIDENCE, curve)


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}: it must lie between 0 and 1, such as 0.95")


def _checked(members: ArrayLike, non_members: ArrayLike) -> tuple[Scores, Scores]:
    inside, outside = np.asarray(members, float), np.asarray(non_members, float)
    for side, scores in (("members", inside), ("non-members", outside)):
        if scores.ndim != 1 or not scores.size:
            raise UsageError(
                f"the scores of the {side} have shape {scores.shape}: give one number per utterance, at least 1"
            )
        if undefined := int(np.isnan(scores).sum()):
            raise UsageError(f"{undefined} of the {side}' scores are NaN: mend the attack, or its model")
    return inside, outside


def _allowed(non_members: int, fpr: float) -> int:
    """How many of them may pass at that rate; compared as quotients, since 0.29 * 100 is below 29 in floats."""
    return int(np.searchsorted(np.arange(non_members + 1) / non_members, fpr, side="right")) - 1


def _placements(members: Scores, non_members: Scores) -> tuple[Scores, Scores]:
    """Per member (M) the share of non-members below it, per non-member (N) of members above it; ties count half."""

    def share_below(scores: Scores, others: Scores) -> Scores:
        rows = np.sort(others)
        return (np.searchsorted(rows, scores, "left") + np.searchsorted(rows, scores, "right")) / (2 * len(rows))

    return share_below(members, non_members), 1 - share_below(non_members, members)


def _half_width(sides: Sequence[Scores], texts: Texts | None, confidence: float) -> float:
    """Of the normal interval of a sum of means, each of values that are independent only from text to text."""
    variance = 0.0
    for values, of in zip(sides, texts or (None, None), strict=True):
        if of is not None:
            sums = np.bincount(np.unique(np.asarray(of), return_inverse=True)[1], weights=values - values.mean())
            variance += float((sums**2).sum()) / len(values) ** 2 * len(sums) / max(len(sums) - 1, 1)
        elif len(values) > 1:
            variance += float(values.var(ddof=1)) / len(values)
    return float(-ndtri((1 - confidence) / 2) * math.sqrt(variance))


# ---- Whether it counts -----------------------------------------------------------------------------------------------


class Guards(NamedTuple):
    """What the sanity guards found of a split into members and non-members."""

    text_auc: float  # of a bag-of-words classifier between their texts, out of fold; 0.5 is guessing
    text_auc_interval: Interval  # at `confidence`
    confidence: float
    duplicates: int  # token strings that occur on both sides
    members: int
    non_members: int
    balanced: bool  # they are equally many
    leaks: bool  # the interval excludes 0.5, on either side: the split is not exchangeable
    said: str  # one sentence: fine, or what is wrong and the cure


def check_split(members: Sequence[Utterance], non_members: Sequence[Utterance]) -> Guards:
    """Run every guard on the utterances that an attack is to tell apart."""
    texts = [{u.tokens for u in side} for side in (members, non_members)]
    for name, side, own in zip(("members", "non-members"), (members, non_members), texts, strict=True):
        if len(side) < LEAST_MEMBERS:
            raise UsageError(
                f"there are {len(side)} {name}: an attack needs at least {LEAST_MEMBERS}, so take a larger corpus"
            )
        if len(own) < FOLDS:
            raise UsageError(f"the {name} hold only {len(own)} distinct texts: an attack needs at least {FOLDS}")
    scores = _text_scores(*texts)
    # Out-of-fold scores are no independent draws: text i helped to score text j and j to score i, so chance likeness
    # counts twice. For scores linear in the labels, s_i = sum_j P_ij y_j with random signs y, the variance of
    # sum_i y_i s_i is sum_{i<j} (P_ij + P_ji)^2, at most twice the sum_{i,j} P_ij^2 that independence would give. So
    # DeLong's interval is made sqrt 2 times as wide (on the logit scale). Measured on random splits: DeLong's own
    # standard error is 1.4 to 1.5 times too small on both ATIS and the smart-home corpus; widened, the interval misses
    # 0.5 in 0.8, 1 and 3 % of 400, 200 and 100 splits.
    wider = 1 - 2 * float(ndtr(math.sqrt(2) * ndtri((1 - SPLIT_CONFIDENCE) / 2)))
    area, interval = auc(*scores), auc_interval(*scores, wider)
    duplicates, sides = len(texts[0] & texts[1]), (len(members), len(non_members))
    leaks = not interval[0] <= 0.5 <= interval[1]
    found = f"AUC {area:.3f}, {100 * SPLIT_CONFIDENCE:g} % interval {interval[0]:.3f} to {interval[1]:.3f}"
    wrong = []
    if leaks:
        tell = f"words alone tell members from non-members ({found})"
        wrong.append(f"the split leaks, for {tell}: pool and split at random")
    if duplicates:
        both = "1 text is" if duplicates == 1 else f"{duplicates:,} texts are"
        wrong.append(f"{both} on both sides: keep duplicates together when splitting")
    if sides[0] != sides[1]:
        wrong.append(f"{sides[0]:,} members face {sides[1]:,} non-members: draw equally many")
    alike = f"words alone do not tell the {sides[0]:,} members from as many non-members ({found})"
    said = "; ".join(wrong) or f"fine: {alike}, and no text is on both sides"
    said = f"{said[0].upper()}{said[1:]}."
    return Guards(area, interval, SPLIT_CONFIDENCE, duplicates, *sides, sides[0] == sides[1], leaks, said)


def _text_scores(members: set[tuple[str, ...]], non_members: set[tuple[str, ...]]) -> tuple[Scores, Scores]:
    """Out-of-fold scores of each side's distinct texts, (M') and (N'); higher means "member".

    A logistic regression on words and bigrams. Distinct, because a split deals a text's copies together, so that they
    are no independent evidence.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    def words_and_bigrams(text: tuple[str, ...]) -> list[str]:
        return [*text, *(" ".join(pair) for pair in pairwise(("<s>", *text, "</s>")))]

    # Folds are dealt in turn, each kind of text for itself, so that all are alike. A text that is on both sides lies
    # in one fold, else training would have seen it.
    rng = np.random.Generator(np.random.PCG64(0))
    kinds = (sorted(members & non_members), sorted(members - non_members), sorted(non_members - members))
    shuffled = [kind[i] for kind in kinds for i in rng.permutation(len(kind))]
    fold = {text: turn % FOLDS for turn, text in enumerate(shuffled)}
    texts = sorted(members) + sorted(non_members)
    is_member = np.arange(len(texts)) < len(members)
    scores = cross_val_predict(
        LogisticRegression(solver="liblinear"),
        CountVectorizer(analyzer=words_and_bigrams, binary=True).fit_transform(texts),  # the words, not the labels
        is_member,
        cv=PredefinedSplit([fold[text] for text in texts]),
        method="decision_function",
    )
    return scores[is_member], scores[~is_member]
