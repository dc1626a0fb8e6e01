"""What students get wrong in notebook 04; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edp_lab.course.kit.exercises import exercises, mark
from edp_lab.privacy import GaussianDP, RenyiDP, ReshufflingZCDP, Schedule


def guess(first: str, claimed: str, holds: str, needed: str) -> dict[str, str]:
    questions = (
        "the noise of the first epoch",
        "the ε that the paper claims",
        "the ε that holds",
        "the z0 that meets ε = 8",
    )
    return dict(zip(questions, (first, claimed, holds, needed), strict=True))


def face_value(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
    return GaussianDP(Schedule(z0, epochs)).epsilon(delta)


def still_a_sample(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
    steps = epochs * utterances // batch_size
    return RenyiDP(Schedule(z0 / (2 * math.sqrt(num_devices)), steps, batch_size / utterances)).epsilon(delta)


def clip_alone(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
    return GaussianDP(Schedule(z0 / math.sqrt(num_devices), epochs)).epsilon(delta)


def every_step(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
    return GaussianDP(Schedule(z0 / (2 * math.sqrt(num_devices)), epochs * utterances // batch_size)).epsilon(delta)


def the_bound(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
    return ReshufflingZCDP(Schedule(z0 / (2 * math.sqrt(num_devices)), epochs)).epsilon(delta)


WRONG: dict[str, dict[str, Any]] = {
    "compose": {
        "adds mu up": lambda z: np.sum(1 / z),
        "forgets the root": lambda z: np.sum(1 / z**2),
        "takes the mean noise for all epochs": lambda z: np.sqrt(len(z)) / np.mean(z),
        "adds up the noise": lambda z: np.sqrt(np.sum(z**2)),
        "asks the array (crash)": lambda z: z.mu(),
    },
    "decay": {
        "decay is a better trade-off": guess("stays", "falls", "falls", "falls"),
        "the claim does not see the decay": guess("stays", "stays", "rises", "rises"),
        "all noise is less, the first too": guess("falls", "rises", "rises", "rises"),
        "less z0 will do": guess("stays", "rises", "rises", "falls"),
    },
    "bill": {
        "mends the batches, takes z0 at face value": face_value,
        "mends the noise, bills a sample": still_a_sample,
        "forgets that one utterance turns a clip around": clip_alone,
        "bills every step of an epoch": every_step,
        "takes the batch for the epochs (crash)": lambda *given: GaussianDP(Schedule(given[0], -1)).epsilon(given[-1]),
    },
}


def test_an_accountant_that_is_untouched_is_open_and_says_why(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("04")["bill"], stub("04", "bill"), 0)
    assert verdict.message.startswith("still to do (it still bills shuffled batches as a sample")


@pytest.mark.parametrize("account", [the_bound])
def test_a_bound_that_holds_is_a_right_bill_too(account: Any) -> None:
    assert [mark(exercises("04")["bill"], account, seed).status for seed in range(5)] == ["solved"] * 5


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (face_value, "that takes z0 at face value."),
        (still_a_sample, "but the batches were shuffled."),
        (every_step, "but an utterance is in one step of an epoch only."),
    ],
)
def test_a_false_bill_is_told_by_its_error(answer: Any, says: str) -> None:
    assert says in mark(exercises("04")["bill"], answer, 0).message
