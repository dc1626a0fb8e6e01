"""Exercises of notebook 05: TPR with its interval, two attacks, and a misleading advantage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.attacks.statistics import advantage, auc, clopper_pearson, tpr_at_fpr
from edp_lab.course.kit.exercises import Differences, chosen, close, exercises_of, given
from edp_lab.course.nb05_membership.panels import sharp_and_blunt

AUDIENCES = 100  # number of synthetic groups on which an advantage is measured
PEOPLE = 60  # number on each side of a group
SHIFT = 1.0  # shift of members' scores in standard deviations: an advantage of 0.383
WELL_KNOWN = 2.0  # extra score of a text with several copies in the training set


def _tpr(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library: with and without ties, at low and high FPR, with no hits and with only hits."""
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
            yield "Return three numbers: the TPR, and the lower and upper end of its interval."
        wanted = tpr_at_fpr(members, others, fpr)
        assert wanted is not None  # at least one non-member may be accused
        yield close(got[0], wanted.value, f"{where}TPR at FPR {fpr:g}", slips=_thresholds(members, others, fpr))
        hits = round(wanted.value * crowd)
        quantity = f"{where}interval for {hits:,} of {crowd:,} members found"
        yield close(got[1:], wanted.interval, quantity, slips=_intervals(hits, crowd))


def _thresholds(members: np.ndarray, others: np.ndarray, fpr: float) -> dict[str, float]:
    """TPRs at thresholds that result from known mistakes, by the message to print."""
    allowed, ranked = math.floor(fpr * len(others) + 1e-9), np.sort(others)[::-1]
    everybody = np.sort(np.concatenate([members, others]))[::-1]
    found = {
        "This accuses one stranger too many: only scores *above* the threshold are members": members >= ranked[allowed],
        "This accuses one stranger too few: the (k + 1)-th highest score has index k": members > ranked[allowed - 1],
        "`np.quantile` interpolates between the scores of two strangers and accuses too many": members
        > np.quantile(others, 1 - fpr),
        "Members must not affect the threshold: sort only the strangers' scores": members
        > everybody[int(fpr * len(everybody) + 1e-9)],
    }
    return {f"{sentence}.": float(np.mean(hits)) for sentence, hits in found.items()}


def _intervals(hits: int, members: int) -> dict[str, list[float]]:
    """Intervals that result from known mistakes, by the message to print."""
    rate = hits / members
    reach = 1.96 * math.sqrt(rate * (1 - rate) / members)
    lower, upper = clopper_pearson(hits, members)
    shifted = clopper_pearson(hits - 1, members)[1] if hits else 0.0
    return {
        "This is the normal approximation, which is too narrow for rates near 0 or 1: solve for both ends.": [
            rate - reach,
            rate + reach,
        ],
        "This leaves 5 % beyond each end: a 95 % interval leaves 2.5 %.": [*clopper_pearson(hits, members, 0.9)],
        "Your upper end is too low: 1 - P[h or more hits] is P[h - 1 or fewer], not P[h or fewer].": [
            lower,
            shifted,
        ],
        "Your ends are in the wrong order: return the lower end first.": [upper, lower],
    }


def _compare(answer: Any, cases: np.random.Generator) -> Differences:
    """Evaluate both attacks on many people by each measure."""
    attacks = sharp_and_blunt(20_000, int(cases.integers(2**31)))
    tails = {name: tpr_at_fpr(*sides, 0.01) for name, sides in attacks.items()}
    measured = {
        "AUC": {name: auc(*sides) for name, sides in attacks.items()},
        "largest TPR - FPR": {name: advantage(*sides) for name, sides in attacks.items()},
        "TPR at 1 % FPR": {name: rate.value for name, rate in tails.items() if rate is not None},
    }
    right = {}
    for question, values in measured.items():
        comparison = " and ".join(f"{value:.3f} for the {name} attack" for name, value in values.items())
        right[question] = max(values, key=lambda name: values[name]), f"you said {{!r}}, but it is {comparison}"
    yield chosen(answer, right, attacks, "neither 'blunt' nor 'sharp'")


Audience = tuple[np.ndarray, np.ndarray, np.ndarray]  # scores, membership, texts


def _advantage(answer: Any, cases: np.random.Generator) -> Differences:
    """Check the mean advantage over many groups of each kind."""
    for draw, low, high, complaint in CROWDS:
        mean = float(np.mean([given(answer(*draw(cases))) for _ in range(AUDIENCES)]))
        if not np.isfinite(mean):
            sorted_ = "(the sentences may be sorted, members first)"
            yield f"Your result is not a number: one half has no strangers or no members {sorted_}."
        if not low < mean < high:
            yield f"{complaint} {mean:.2f} on average."


def _people(cases: np.random.Generator, members: int, shift: float) -> Audience:
    """Draw a group with members first; members score higher by `shift` standard deviations."""
    member = np.arange(2 * PEOPLE) < members
    return cases.normal(shift * member, 1), member, np.array([f"text {k}" for k in range(2 * PEOPLE)])


def _with_copies(cases: np.random.Generator) -> Audience:
    """Draw a group in random order; half of the members' texts score high and have two copies among the strangers."""
    scores, member, texts = _people(cases, PEOPLE, SHIFT)
    copied = cases.permutation(PEOPLE)[: PEOPLE // 2]
    scores[copied] += WELL_KNOWN
    who = np.append(np.arange(len(scores)), np.repeat(copied, 2))
    return _shuffled(cases, scores[who], member[who] & (np.arange(len(who)) < len(scores)), texts[who])


def _shuffled(cases: np.random.Generator, scores: np.ndarray, member: np.ndarray, texts: np.ndarray) -> Audience:
    order = cases.permutation(len(scores))
    return scores[order], member[order], texts[order]


CROWDS = (  # function that draws a group, range of the mean advantage, and message if it is outside
    (
        lambda cases: _people(cases, PEOPLE, 0.0),
        -0.08,
        0.08,
        f"Random scores have no advantage, but over {AUDIENCES} groups of {2 * PEOPLE} sentences yours is",
    ),
    (
        _with_copies,
        0.28,
        0.46,
        "If some strangers are copies of training texts, the advantage without these texts is about 0.35; yours is",
    ),
    (
        lambda cases: _shuffled(cases, *_people(cases, PEOPLE // 2, 3.0)),
        0.74,
        0.9,
        "If a quarter of the sentences are members and score 3 standard deviations higher, a threshold chosen by "
        "TPR - FPR has an advantage of about 0.83; yours is",
    ),
)


EXERCISES = exercises_of(__file__, tpr=_tpr, compare=_compare, advantage=_advantage)
