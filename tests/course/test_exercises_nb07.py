"""What students get wrong in notebook 07; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import exercises, mark


def by_quantile(members: Any, non_members: Any, fpr: float) -> Any:
    return np.mean(members > np.quantile(non_members, 1 - fpr))


def by_members(members: Any, non_members: Any, fpr: float) -> Any:
    return np.mean(non_members > np.sort(members)[::-1][int(fpr * len(members))])


def one_too_many(members: Any, non_members: Any, fpr: float) -> Any:
    return np.mean(members >= np.sort(non_members)[::-1][int(fpr * len(non_members) + 1e-9)])


def one_too_few(members: Any, non_members: Any, fpr: float) -> Any:
    return np.mean(members > np.sort(non_members)[::-1][int(fpr * len(non_members) + 1e-9) - 1])


def of_all(members: Any, non_members: Any, fpr: float) -> Any:
    everyone = np.sort(np.concatenate([members, non_members]))[::-1]
    return np.mean(members > everyone[int(fpr * len(everyone))])


def guess(area: str, gap: str, tail: str) -> dict[str, str]:
    return {"AUC": area, "largest TPR - FPR": gap, "TPR at 1 % FPR": tail}


def gap(scores: Any, member: Any, people: Any, t: float) -> Any:
    return np.mean(scores[people & member] >= t) - np.mean(scores[people & ~member] >= t)


def flattering(scores: Any, member: Any, texts: Any) -> Any:
    everyone = np.ones(len(scores), bool)
    return max(gap(scores, member, everyone, t) for t in scores)


def without_copies_only(scores: Any, member: Any, texts: Any) -> Any:
    alone = ~np.isin(texts, np.intersect1d(texts[member], texts[~member]))
    return flattering(scores[alone], member[alone], texts[alone])


def halves_only(scores: Any, member: Any, texts: Any) -> Any:
    half = np.arange(len(scores)) % 2 == 0
    return gap(scores, member, ~half, max(scores[half], key=lambda t: gap(scores, member, half, t)))


def copies_among_members_only(scores: Any, member: Any, texts: Any) -> Any:
    kept = ~(member & np.isin(texts, texts[~member]))
    return halves_only(scores[kept], member[kept], texts[kept])


def copies_among_non_members_only(scores: Any, member: Any, texts: Any) -> Any:
    kept = member | ~np.isin(texts, texts[member])
    return halves_only(scores[kept], member[kept], texts[kept])


def alone(scores: Any, member: Any, texts: Any) -> Any:
    kept = ~np.isin(texts, np.intersect1d(texts[member], texts[~member]))
    return scores[kept], member[kept]


def first_and_second_half(scores: Any, member: Any, texts: Any) -> Any:
    scores, member = alone(scores, member, texts)
    first = np.arange(len(scores)) < len(scores) // 2
    with np.errstate(invalid="ignore"), warnings.catch_warnings(action="ignore"):
        return gap(scores, member, ~first, max(scores[first], key=lambda t: gap(scores, member, first, t)))


def at_the_median(scores: Any, member: Any, texts: Any) -> Any:
    scores, member = alone(scores, member, texts)
    return gap(scores, member, np.ones(len(scores), bool), np.median(scores))


WRONG: dict[str, dict[str, Any]] = {
    "tpr": {
        "lets a quantile interpolate": by_quantile,
        "asks the members for the threshold": by_members,
        "accuses one stranger too many": one_too_many,
        "accuses one stranger too few": one_too_few,
        "a share of everybody, not of the non-members": of_all,
    },
    "compare": {
        "the average decides everything": guess("blunt", "blunt", "blunt"),
        "certainty decides everything": guess("sharp", "sharp", "sharp"),
        "the wrong way round": guess("sharp", "sharp", "blunt"),
        "in words of one's own": guess("the first", "the first", "the second"),
        "one word for three questions": "blunt",
    },
    "advantage": {
        "as it was": flattering,
        "drops the copies, keeps the threshold": without_copies_only,
        "halves, but keeps the copies": halves_only,
        "drops the copies among members only": copies_among_members_only,
        "drops the copies among non-members only": copies_among_non_members_only,
        "halves that may lack one side": first_and_second_half,
        "splits nobody, takes the median": at_the_median,
        "finds nothing, to be safe": lambda scores, member, texts: 0.0,
    },
}


def test_a_flattering_advantage_is_told_what_it_finds_in_noise() -> None:
    message = mark(exercises("07")["advantage"], flattering, 0).message
    assert message.startswith(
        "scores that know nothing have no advantage, but over 100 groups of 120 people yours is 0.1"
    )


def test_halves_that_lack_one_side_are_told_so() -> None:
    message = mark(exercises("07")["advantage"], first_and_second_half, 0).message
    assert message.startswith("your result is not a number: one half has no non-members")


def test_a_fair_advantage_is_solved_with_every_seed_and_with_random_halves() -> None:
    def fair(scores: Any, member: Any, texts: Any) -> Any:
        scores, member = alone(scores, member, texts)
        half = rng.permutation(len(scores)) % 2 == 0
        return gap(scores, member, ~half, max(scores[half], key=lambda t: gap(scores, member, half, t)))

    rng = np.random.default_rng(0)
    assert {mark(exercises("07")["advantage"], fair, seed).status for seed in range(10)} == {"solved"}


def test_a_wrong_comparison_is_told_with_both_numbers() -> None:
    message = mark(exercises("07")["compare"], guess("blunt", "blunt", "blunt"), 0).message
    assert message.startswith("TPR at 1 % FPR: you said 'blunt', but it is 0.02")
    assert "for the sharp one" in message
