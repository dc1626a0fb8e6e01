"""The exercises of notebook 05, membership inference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.attacks.statistics import advantage, auc, clopper_pearson, tpr_at_fpr
from edp_lab.course.kit.exercises import Differences, chosen, close, exercises_of, given
from edp_lab.course.nb05_membership.panels import sharp_and_blunt

AUDIENCES = 100  # made-up groups of people on which an advantage is measured
PEOPLE = 60  # on either side of each
SHIFT = 1.0  # of members' scores, in standard deviations: an advantage of 0.383
WELL_KNOWN = 2.0  # extra score of a text with several copies in the training set


def _tpr(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library: with and without ties, one and many false accusations allowed, no hit, hits only."""
    for ties, size, crowd, shift in (
        (False, 20, 3_000, 0.8),
        (True, 120, 150, 0.8),
        (False, 1_000, 1_200, 0.8),
        (False, 100, 90, 0.8),
        (False, 100, 60, -20.0),
        (False, 100, 60, 20.0),
    ):
        members, others = cases.normal(shift, 1, crowd), cases.normal(0, 1, size)
        if ties:
            members, others = members.round(1), others.round(1)
        fpr = int(cases.integers(1, 8)) / size if size < 1_000 else round(float(cases.uniform(0.0105, 0.3)), 4)
        equal = ", some with equal scores" if ties else ""
        where = f"{crowd:,} members, {size:,} non-members{equal}: "
        got = np.asarray(given(answer(members.copy(), others.copy(), fpr)), dtype=float)
        if got.shape != (3,):
            yield "return three numbers: the TPR, and the lower and the upper end of its interval."
        wanted = tpr_at_fpr(members, others, fpr)
        assert wanted is not None  # at least one of the non-members is allowed
        yield close(got[0], wanted.value, f"{where}TPR at FPR {fpr:g}", slips=_thresholds(members, others, fpr))
        hits = round(wanted.value * crowd)
        quantity = f"{where}interval of {hits:,} found of {crowd:,}"
        yield close(got[1:], wanted.interval, quantity, slips=_intervals(hits, crowd))


def _thresholds(members: np.ndarray, others: np.ndarray, fpr: float) -> dict[str, float]:
    """The TPR at a threshold chosen by a known mistake, by the sentence to print."""
    allowed, ranked = math.floor(fpr * len(others) + 1e-9), np.sort(others)[::-1]
    everybody = np.sort(np.concatenate([members, others]))[::-1]
    found = {
        "that accuses one stranger too many: call those members who score *above* the threshold": members
        >= ranked[allowed],
        "that accuses one stranger too few: the (k + 1)-th highest has index k": members > ranked[allowed - 1],
        "`np.quantile` interpolates between two strangers, which accuses too many": members
        > np.quantile(others, 1 - fpr),
        "the members have no say in the threshold: sort the strangers alone": members
        > everybody[int(fpr * len(everybody) + 1e-9)],
    }
    return {f"{sentence}.": float(np.mean(hits)) for sentence, hits in found.items()}


def _intervals(hits: int, members: int) -> dict[str, list[float]]:
    """An interval computed by a known mistake, by the sentence to print."""
    rate = hits / members
    reach = 1.96 * math.sqrt(rate * (1 - rate) / members)
    lower, upper = clopper_pearson(hits, members)
    shifted = clopper_pearson(hits - 1, members)[1] if hits else 0.0
    return {
        "that is the normal approximation, which is too narrow for rates near 0 or 1: solve for both ends.": [
            rate - reach,
            rate + reach,
        ],
        "that leaves 5 % beyond each end: a 95 % interval leaves 2.5 %.": [*clopper_pearson(hits, members, 0.9)],
        "your upper end is too low: 1 minus the chance of h or more is that of h - 1 or fewer, not of h.": [
            lower,
            shifted,
        ],
        "these ends are the other way round: the lower one comes first.": [upper, lower],
    }


def _compare(answer: Any, cases: np.random.Generator) -> Differences:
    """Both attacks on many people, evaluated by each measure."""
    attacks = sharp_and_blunt(20_000, int(cases.integers(2**31)))
    tails = {name: tpr_at_fpr(*sides, 0.01) for name, sides in attacks.items()}
    measured = {
        "AUC": {name: auc(*sides) for name, sides in attacks.items()},
        "largest TPR - FPR": {name: advantage(*sides) for name, sides in attacks.items()},
        "TPR at 1 % FPR": {name: rate.value for name, rate in tails.items() if rate is not None},
    }
    right = {}
    for question, values in measured.items():
        comparison = " and ".join(f"{value:.3f} for the {name} one" for name, value in values.items())
        right[question] = max(values, key=lambda name: values[name]), f"you said {{!r}}, but it is {comparison}"
    yield chosen(answer, right, attacks, "neither 'blunt' nor 'sharp'")


Audience = tuple[np.ndarray, np.ndarray, np.ndarray]  # scores, who is a member, texts


def _advantage(answer: Any, cases: np.random.Generator) -> Differences:
    """The mean over many groups of people of each kind."""
    for draw, low, high, complaint in CROWDS:
        mean = float(np.mean([given(answer(*draw(cases))) for _ in range(AUDIENCES)]))
        if not np.isfinite(mean):
            sorted_ = "(the sentences may come sorted, members first)"
            yield f"your result is not a number: one half has no strangers, or no members {sorted_}."
        if not low < mean < high:
            yield f"{complaint} {mean:.2f} on average."


def _people(cases: np.random.Generator, members: int, shift: float) -> Audience:
    """Members first; they score higher by `shift` standard deviations."""
    member = np.arange(2 * PEOPLE) < members
    return cases.normal(shift * member, 1), member, np.array([f"text {k}" for k in range(2 * PEOPLE)])


def _with_copies(cases: np.random.Generator) -> Audience:
    """In random order; two strangers each say what half of the members say, texts that the model knows best of all."""
    scores, member, texts = _people(cases, PEOPLE, SHIFT)
    copied = cases.permutation(PEOPLE)[: PEOPLE // 2]
    scores[copied] += WELL_KNOWN
    who = np.append(np.arange(len(scores)), np.repeat(copied, 2))
    return _shuffled(cases, scores[who], member[who] & (np.arange(len(who)) < len(scores)), texts[who])


def _few_members(cases: np.random.Generator) -> Audience:
    """In random order; one in four is a member, and stands out."""
    return _shuffled(cases, *_people(cases, PEOPLE // 2, 3.0))


def _shuffled(cases: np.random.Generator, scores: np.ndarray, member: np.ndarray, texts: np.ndarray) -> Audience:
    order = cases.permutation(len(scores))
    return scores[order], member[order], texts[order]


CROWDS = (  # who is drawn, the range that must include the mean advantage, and the sentence to print otherwise
    (
        lambda cases: _people(cases, PEOPLE, 0.0),
        -0.08,
        0.08,
        f"scores that know nothing have no advantage, but over {AUDIENCES} groups of {2 * PEOPLE} sentences yours is",
    ),
    (
        _with_copies,
        0.28,
        0.46,
        "where the model knows the copies among the strangers, because they were in the training set, the advantage "
        "over real strangers, of members that are in no copy, is about 0.35; yours is",
    ),
    (
        _few_members,
        0.74,
        0.9,
        "where a quarter of the sentences are members and score 3 standard deviations higher, a threshold that is "
        "chosen by TPR - FPR has an advantage of about 0.83; yours is",
    ),
)


EXERCISES = exercises_of(__file__, tpr=_tpr, compare=_compare, advantage=_advantage)
