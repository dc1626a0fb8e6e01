"""What students get wrong in notebook 06; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edp_lab.course.kit.exercises import exercises, mark
from edp_lab.course.nb06_tradeoff.compute import explore
from edp_lab.course.nb06_tradeoff.exercises import EPOCHS, PAIRS
from edp_lab.course.nb06_tradeoff.grid import load_grid
from edp_lab.privacy import gdp_epsilon

Trials = Sequence[dict[str, float]]


def chosen(letters: str) -> dict[str, str]:
    return dict(zip(PAIRS, letters, strict=True))


def reported(by: str, mu: Callable[[list[float]], float]) -> Callable[[Trials, float], tuple[float, float]]:
    """The test error of the best trial by a score, and the epsilon of mu."""

    def report(trials: Trials, delta: float) -> tuple[float, float]:
        best = min(trials, key=lambda trial: trial[by])
        return best["test_ser"], gdp_epsilon(mu([trial["mu"] for trial in trials]), delta)

    return report


def together(mus: list[float]) -> float:
    return math.hypot(*mus)


def validation_score(trials: Trials, delta: float) -> tuple[float, float]:
    best = min(trial["validation_ser"] for trial in trials)
    return best, gdp_epsilon(together([trial["mu"] for trial in trials]), delta)


def sum_of_epsilons(trials: Trials, delta: float) -> tuple[float, float]:
    best = min(trials, key=lambda trial: trial["validation_ser"])
    return best["test_ser"], sum(gdp_epsilon(trial["mu"], delta) for trial in trials)


def winner_only(trials: Trials, delta: float) -> tuple[float, float]:
    best = min(trials, key=lambda trial: trial["validation_ser"])
    return best["test_ser"], gdp_epsilon(best["mu"], delta)


WRONG: dict[str, dict[str, Any]] = {
    "smaller": {
        "the printed run promises more": chosen("BBA"),
        "a larger z0 is all that counts": chosen("AAA"),
        "sampling always helps": chosen("ABB"),
        "other letters": chosen("abA"),
    },
    "noise": {
        "C on every rung": lambda z, clip, m, batch: z * clip * m / batch,
        "2C on every rung": lambda z, clip, m, batch: z * 2 * clip * m / batch,
        "divides by sentences, not micro-batches": lambda z, clip, m, batch: z * (1 + (m > 1)) * clip / batch,
        "the noise of the sum": lambda z, clip, m, batch: z * (1 + (m > 1)) * clip,
        "independent noises average out": lambda z, clip, m, batch: z * (1 + (m > 1)) * clip * math.sqrt(m / batch),
    },
    "report": {
        "pays for the winner only": winner_only,
        "still picks by the test set": reported("test_ser", together),
        "adds the mus": reported("validation_ser", sum),
        "takes the largest mu": reported("validation_ser", max),
        "adds the epsilons": sum_of_epsilons,
        "reports the score it chose by": validation_score,
    },
}


@pytest.mark.parametrize("question", PAIRS)
def test_the_runs_of_a_pair_were_measured_and_err_alike(question: str) -> None:
    runs = [explore(load_grid(), *setting, EPOCHS) for setting in PAIRS[question]]
    assert [run.differs for run in runs] == [{}, {}]
    assert abs(runs[0].point.ser - runs[1].point.ser) < 0.02
    epsilons = sorted(run.point.epsilon or math.inf for run in runs)
    assert epsilons[1] > 5 * epsilons[0]


def test_a_wrong_prediction_is_told_with_both_runs() -> None:
    message = mark(exercises("06")["smaller"], chosen("BBA"), 0).message
    assert "you said B, but A: SER 0.60, ε 4.77e+03; B: SER 0.60" in message


def test_a_report_that_is_untouched_is_open_and_says_so(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("06")["report"], stub("06", "report"), 0)
    assert verdict.message == "still to do (it still picks by the test set and pays for the winner only)"
