"""What students get wrong in notebook 09; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edp_lab.course.kit.exercises import exercises, mark


def guess(one: str, together: str, length: str, epsilon: str) -> dict[str, str]:
    questions = (
        "numbers drawn by one process",
        "numbers drawn by all together",
        "the released gradient's length",
        "the ε that holds",
    )
    return dict(zip(questions, (one, together, length, epsilon), strict=True))


def normal(seed: Any, size: int, std: float) -> Any:
    return np.random.default_rng(seed).normal(0, std, size)


def same_draw(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal([key, step], size, std / ranks)


def undivided(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal([key, step, rank], size, std)


def too_little(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal([key, step, rank], size, std / ranks)


def same_in_every_step(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal([key, rank], size, std / math.sqrt(ranks))


def seeds_that_meet(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal(key + step + rank, size, std / math.sqrt(ranks))


def without_the_key(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal([step, rank], size, std / math.sqrt(ranks))


def without_a_seed(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal(None, size, std / math.sqrt(ranks))


def key_times_step(key: int, step: int, rank: int, ranks: int, size: int, std: float) -> Any:
    return normal(key * step + rank, size, std / math.sqrt(ranks))


WRONG: dict[str, dict[str, Any]] = {
    "aggregate": {
        "takes the draws for one and the same": lambda stds: np.mean(stds),
        "adds up and forgets the mean": lambda stds: np.sqrt(np.sum(stds**2)),
        "divides by the root only": lambda stds: np.sqrt(np.sum(stds**2)) / np.sqrt(len(stds)),
        "the spread of the deviations": lambda stds: np.std(stds),
        "counts the devices twice (crash)": lambda stds: stds[len(stds)],
    },
    "processes": {
        "two processes draw twice as much": guess("stays", "rises", "rises", "falls"),
        "half the noise for each, half the privacy": guess("falls", "stays", "falls", "rises"),
        "other numbers, another gradient": guess("falls", "stays", "rises", "stays"),
        "two processes share the work of all": guess("falls", "falls", "stays", "stays"),
    },
    "ranks": {
        "divides, but all ranks draw the same": same_draw,
        "own draws, not divided": undivided,
        "own draws, divided like a mean": too_little,
        "the same numbers in every step": same_in_every_step,
        "seeds of rank and step meet": seeds_that_meet,
        "step and rank, but no key": without_the_key,
        "no seed at all": without_a_seed,
        "step 0 loses the key": key_times_step,
        "gives the seed a name (crash)": lambda key, step, rank, *rest: np.random.default_rng(f"{key} {rank}"),
    },
}


def test_noise_that_is_untouched_is_open_and_says_why(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("09")["ranks"], stub("09", "ranks"), 0)
    assert verdict.message == "still to do (it still draws the same numbers on every rank and in every step)"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (same_draw, "ranks 0 and 1 draw the same numbers"),
        (same_in_every_step, "numbers of one step come again in the next"),
        (seeds_that_meet, "numbers of one step come again in the next"),
        (undivided, "the sum over ranks has deviation"),
        (without_the_key, "in step 0 another key gives the same numbers"),
        (without_a_seed, "give other numbers the second time"),
        (key_times_step, "in step 0 another key gives the same numbers"),
    ],
)
def test_what_is_wrong_with_the_noise_is_told(answer: Any, says: str) -> None:
    assert says in mark(exercises("09")["ranks"], answer, 0).message
