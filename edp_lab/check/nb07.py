"""The exercises of notebook 07, membership inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edp_lab.attacks.statistics import advantage, auc, tpr_at_fpr
from edp_lab.check import Exercise, close
from edp_lab.course.membership import sharp_and_blunt

NOTHING = "(your function returns None: is there a `return`?)"
AUDIENCES = 100  # made-up groups of people on which an advantage is measured
PEOPLE = 60  # on either side of each
SHIFT = 1.0  # of members' scores, in standard deviations: an advantage of 0.383
QUESTIONS = ("AUC", "largest TPR - FPR", "TPR at 1 % FPR")


def _tpr(answer: Any, cases: np.random.Generator) -> str | None:
    """Against the library: scores with and without ties, with room for one and for many false accusations."""
    for ties, size, crowd in ((False, 20, 3_000), (True, 120, 150), (False, 1_000, 1_200), (False, 100, 90)):
        members, others = cases.normal(0.8, 1, crowd), cases.normal(0, 1, size)
        if ties:
            members, others = members.round(1), others.round(1)
        fpr = int(cases.integers(1, 8)) / size if size < 1_000 else round(float(cases.uniform(0.0105, 0.3)), 4)
        wanted = tpr_at_fpr(members, others, fpr)
        assert wanted is not None  # at least one of the non-members is allowed
        equal = ", some with equal scores" if ties else ""
        said = f"{crowd:,} members, {size:,} non-members{equal}: TPR at FPR {fpr:g}"
        if differs := close(answer(members.copy(), others.copy(), fpr), wanted.value, said):
            return differs
    return None


def _compare(answer: Any, cases: np.random.Generator) -> str | None:
    """Both attacks on many people, by each measure."""
    if not isinstance(answer, Mapping) or answer.keys() != set(QUESTIONS):
        return f"a prediction is a dictionary with the questions {', '.join(map(repr, QUESTIONS))}."
    if None in answer.values():
        raise NotImplementedError
    attacks = sharp_and_blunt(20_000, int(cases.integers(2**31)))
    measured = {
        name: (auc(*sides), advantage(*sides).value, _at_one_percent(*sides)) for name, sides in attacks.items()
    }
    for k, question in enumerate(QUESTIONS):
        values = {name: numbers[k] for name, numbers in measured.items()}
        if answer[question] not in values:
            return f"{question}: {answer[question]!r} is neither 'blunt' nor 'sharp'."
        if answer[question] != max(values, key=lambda name: values[name]):
            told = " and ".join(f"{value:.3f} for the {name} one" for name, value in values.items())
            return f"{question}: you said {answer[question]!r}, but it is {told}."
    return None


def _at_one_percent(members: np.ndarray, others: np.ndarray) -> float:
    rate = tpr_at_fpr(members, others, 0.01)
    assert rate is not None
    return rate.value


def _advantage(answer: Any, cases: np.random.Generator) -> str | None:
    """The mean over many groups of people: of scores that know nothing, and with copies on both sides."""
    texts = np.array([f"text {k}" for k in range(2 * PEOPLE)])
    member = np.arange(2 * PEOPLE) < PEOPLE
    found = [answer(cases.normal(size=2 * PEOPLE), member.copy(), texts.copy()) for _ in range(AUDIENCES)]
    if None in found:
        raise NotImplementedError(NOTHING)
    mean, error = float(np.mean(found)), float(np.std(found)) / AUDIENCES**0.5
    if abs(mean) > 5 * error + 0.02:
        return (
            f"scores that know nothing have no advantage, but over {AUDIENCES} groups of {2 * PEOPLE} people yours is "
            f"{mean:.2f} on average."
        )
    found = [answer(*_with_copies(cases, member, texts)) for _ in range(AUDIENCES)]
    mean = float(np.mean(found))
    if not 0.28 < mean < 0.46:
        return (
            f"where the model knows the copies among the non-members, because they were in the training set, the "
            f"advantage over real non-members is about 0.37; yours is {mean:.2f} on average."
        )
    return None


def _with_copies(
    cases: np.random.Generator, member: np.ndarray, texts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half as many people again, who say what members say: the model has seen their texts, and scores them alike."""
    scores = cases.normal(SHIFT * member, 1)
    copied = cases.permutation(PEOPLE)[: PEOPLE // 2]
    order = cases.permutation(2 * PEOPLE + len(copied))
    return (
        np.append(scores, scores[copied])[order],
        np.append(member, np.zeros(len(copied), bool))[order],
        np.append(texts, texts[copied])[order],
    )


EXERCISES = (
    Exercise(
        "tpr",
        "Members found at a low FPR",
        _tpr,
        "with k non-members allowed, the threshold lies just above the (k + 1)-th highest non-member; the members have "
        "no say in it.",
        "A few strangers set the threshold: at 1 % of 2,025 it is the 21st highest of them, at 0.1 % the third.",
    ),
    Exercise(
        "compare",
        "Two attacks",
        _compare,
        "the sharp attack is certain of one member in twenty and guesses the others: which part of its ROC curve does "
        "that lift?",
        "AUC and TPR - FPR are averages over everybody. Who is certain of a few people harms these few, and shows only "
        "at the left end of the curve.",
    ),
    Exercise(
        "advantage",
        "An advantage that flatters",
        _advantage,
        "drop every text that is on both sides, from both; then choose the threshold on one half of the people, and "
        "measure on the other.",
        "A threshold that is chosen after the fact finds an advantage in noise, and a copy of a training text is no "
        "stranger to the model.",
    ),
)
