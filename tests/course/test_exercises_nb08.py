"""What students get wrong in notebook 08; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.attacks.audit.bounds import error_rate, lower_bounds
from edp_lab.course.kit.exercises import exercises, mark
from edp_lab.course.nb08_audit.exercises import QUESTIONS


def odds(fpr: float, fnr: float, delta: float) -> float:
    return max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)


def limited(absent: Any, present: Any, delta: float, t: float = 0.0, confidence: float = 0.95) -> float:
    limits = [error_rate(wrong, confidence).upper_limit for wrong in (absent > t, present <= t)]
    return lower_bounds(limits[0], limits[1], delta).gaussian


def counted(absent: Any, present: Any, delta: float, t: float = 0.0) -> float:
    fpr, fnr = float(np.mean(absent > t)), float(np.mean(present <= t))
    return lower_bounds(max(fpr, 1e-9), max(fnr, 1e-9), delta).gaussian


def best_counted(absent: Any, present: Any, delta: float) -> float:
    return max(counted(absent, present, delta, t) for t in np.concatenate([absent, present]))


def best_limited(absent: Any, present: Any, delta: float) -> float:
    return max(limited(absent, present, delta, t) for t in np.concatenate([absent, present]))


def guess(hundred: str, alone: str, ten: str, sound: str) -> dict[str, str]:
    return dict(zip(QUESTIONS, (hundred, alone, ten, sound), strict=True))


WRONG: dict[str, dict[str, Any]] = {
    "at_least": {
        "forgets delta": lambda fpr, fnr, delta: max(0.0, math.log(odds(fpr, fnr, 0.0))),
        "asks one inequality only": lambda fpr, fnr, delta: math.log(max(1.0, (1 - fnr - delta) / fpr)),
        "takes the smaller one": lambda fpr, fnr, delta: math.log(
            max(1.0, min((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr))
        ),
        "goes below 0": lambda fpr, fnr, delta: math.log(max(1e-9, odds(fpr, fnr, delta))),
        "another logarithm": lambda fpr, fnr, delta: math.log10(max(1.0, odds(fpr, fnr, delta))),
    },
    "verdicts": {
        "one device keeps the promise": guess("refuted", "consistent", "no power", "consistent"),
        "false claims are always refuted": guess("refuted", "refuted", "refuted", "consistent"),
        "few draws say nothing": guess("no power", "refuted", "no power", "consistent"),
        "what is not refuted holds": guess("refuted", "refuted", "holds", "holds"),
    },
    "honest": {
        "as it was": best_counted,
        "counted rates, threshold fixed": counted,
        "limits, but the best threshold": best_limited,
        "half the confidence": lambda absent, present, delta: limited(absent, present, delta, confidence=0.5),
        "proves nothing, to be safe": lambda absent, present, delta: 0.0,
    },
}


def test_an_audit_that_flatters_is_told_how_often_it_proves_more_than_the_truth() -> None:
    message = mark(exercises("08")["honest"], best_counted, 0).message
    told = int(message.split("proves more than that in ")[1].split(".")[0])
    assert told >= 27
    assert "Of 30 audits of a step whose ε is 4.38" in message


def test_a_wrong_verdict_is_told_with_the_numbers_behind_the_right_one() -> None:
    message = mark(exercises("08")["verdicts"], guess("refuted", "refuted", "refuted", "consistent"), 0).message
    assert "but with ε = 21.6 claimed, 4.38 proven and 4.38 provable at most, it is 'no power'" in message
