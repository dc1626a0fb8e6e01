"""What students get wrong in notebook 03; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from edp_lab.course.kit.exercises import exercises, judge

WRONG: dict[str, dict[str, Any]] = {
    "noise": {
        "believes the accountant": lambda C, z, N: C * z / N,
        "adds variances as if they were deviations": lambda C, z, N: C * z / N**2,
        "forgets one division by N": lambda C, z, N: C * z / math.sqrt(N),
        "one device's noise": lambda C, z, N: C * z,
        "takes the variance": lambda C, z, N: (C * z) ** 2 / N**3,
    },
    "devices": {
        "believes the paper": ("stays", "stays"),
        "more noise sources hide more": ("falls", "falls"),
        "the share of a sentence falls": ("stays", "falls"),
        "claim and truth move together": ("rises", "rises"),
        "one word for both": "stays",
        "in words of one's own": ("stays", "grows"),
    },
    "accountant": {
        "takes z at face value": lambda z, N, alpha: z,
        "mends nothing": lambda z, N, alpha: z / math.sqrt(N),
        "ignores the rescaling": lambda z, N, alpha: z / (2 * math.sqrt(N)),
        "ignores that a sentence can turn the mean around": lambda z, N, alpha: z / (math.sqrt(N) * max(alpha)),
        "takes a scale to be 1 at least": lambda z, N, alpha: z / (2 * math.sqrt(N) * max(1, max(alpha))),
        "averages alpha": lambda z, N, alpha: z / (2 * math.sqrt(N) * sum(alpha) / len(alpha)),
        "takes alpha for a number (crash)": lambda z, N, alpha: z / (2 * math.sqrt(N) * alpha),
    },
}


@pytest.mark.parametrize(
    ("name", "what", "says"),
    [
        ("noise", "believes the accountant", "all devices added the same y"),
        ("noise", "takes the variance", "That is the variance"),
        ("devices", "more noise sources hide more", "The claimed ε does not know N: at z = "),
        ("devices", "believes the paper", "The ε that holds, at z = .* is .* for 8 and .* for 32"),
        ("devices", "in words of one's own", "'grows' is none of the answers: choose from rises, falls, stays"),
        ("devices", "one word for both", "Give two words"),
        ("accountant", "ignores the rescaling", "The clip comes before the scaling back"),
        ("accountant", "ignores that a sentence can turn the mean around", "from C one way to C the other"),
        ("accountant", "averages alpha", "all its gradient into one layer"),
    ],
)
def test_a_slip_is_told_in_words(name: str, what: str, says: str) -> None:
    for seed in range(5):
        message = judge(exercises("03")[name], WRONG[name][what], seed).message
        assert re.search(says, message), message


def test_words_of_a_prediction_may_be_written_in_any_case() -> None:
    assert judge(exercises("03")["devices"], ["Stays", "RISES "], 0).status == "solved"
