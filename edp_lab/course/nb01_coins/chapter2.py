"""Chapter 2 of the thesis: its noisy counts, local and global noise, and a linkage attack, beside what it prints.

Source: Barzegar 2021, A Differential Private Approach for Preserving the Privacy in Deep Learning Algorithms. Each
function computes one named tuple and draws nothing on a screen; randomness comes from the generator passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import (
    Hierarchy,
    NoisyCounter,
    Release,
    Text,
    anonymise,
    generalise_code,
    generalise_number,
    laplace_scale,
    link,
    local_count_error,
    star,
)

Array = NDArray[np.float64]

CREDIT_RATINGS = {"bad": 3, "normal": 1510, "good": 200}  # table 2.1
CREDIT_EPSILON = math.sqrt(2) / 2  # section 2.2.4: Laplace noise of standard deviation 2, so of scale sqrt 2
QUASI_IDENTIFIERS = (
    Hierarchy("postal code", generalise_code(5)),
    Hierarchy("age", generalise_number(5, 10, 20)),
    Hierarchy("sex", (str, star)),
)
MOST_SUPPRESSED = 0.05  # of the records of a release
DESCRIPTIONS = ("asthma", "diabetes", "fracture", "migraine")


class NoisyCounts(NamedTuple):
    """Answers to one question, their average and its 90 % interval."""

    responses: Array
    average: float
    # average +- t s / sqrt n, with Student's t of n - 1 degrees of freedom and s^2 divided by n - 1
    interval: tuple[float, float]
    interval_dividing_by_n: tuple[float, float]  # s^2 divided by n, which makes it too narrow: the thesis' own


class PrintedCounts(NamedTuple):
    """Table 2.2 (section 2.2.4) as the thesis prints it; the true count is that of table 2.1."""

    responses: tuple[float, ...] = (2.91, 1.88, 1.29, 4.02, 5.34)
    average: float = 3.09
    interval: tuple[float, float] = (1.69, 4.48)


TABLE_2_2 = PrintedCounts()


def summarise_counts(responses: ArrayLike) -> NoisyCounts:
    """Average and 90 % intervals of two answers or more, as in table 2.2; UsageError for fewer: they have no spread."""
    answers = np.asarray(responses, dtype=np.float64)
    if answers.size < 2:
        raise UsageError(f"the number of answers is {answers.size}: an interval needs at least 2")
    mean, quantile = float(answers.mean()), float(stdtrit(answers.size - 1, 0.95))
    half, narrow = (quantile * float(answers.std(ddof=d)) / math.sqrt(answers.size) for d in (1, 0))
    return NoisyCounts(answers, mean, (mean - half, mean + half), (mean - narrow, mean + narrow))


def noisy_counts(rng: np.random.Generator, queries: int = 5) -> NoisyCounts:
    """Table 2.2 anew: the number of bad ratings, asked again and again of a counter without a cache."""
    ratings = [rating for rating, count in CREDIT_RATINGS.items() for _ in range(count)]
    counter = NoisyCounter(ratings, queries * CREDIT_EPSILON * 2, rng)
    return summarise_counts([counter.count(lambda rating: rating == "bad", CREDIT_EPSILON) for _ in range(queries)])


class LocalAndGlobal(NamedTuple):
    """Standard error of a count of `people` (P,) at `epsilon` (E,): local DP (P, E), global DP (E,) for any P."""

    people: NDArray[np.int64]
    epsilon: Array
    local: Array
    central: Array


def local_and_global(people: Sequence[int], epsilons: Sequence[float]) -> LocalAndGlobal:
    """Section 2.3.3: everyone's answer randomised by its owner, against Laplace noise on the sum by a trusted curator.

    Both protect against one answer replaced by another, at the same epsilon.
    """
    local = np.array([[local_count_error(count, epsilon) for epsilon in epsilons] for count in people])
    central = math.sqrt(2) * np.array([laplace_scale(1.0, epsilon) for epsilon in epsilons])
    return LocalAndGlobal(np.asarray(people), np.asarray(epsilons, dtype=np.float64), local, central)


class Voters(NamedTuple):
    """A synthetic electoral roll."""

    rows: Text  # (voters, 3), postal code, age, sex
    patients: NDArray[np.int64]  # the positions of those who occur in the released table
    description: Text  # (patients,), the secret
    month: Text  # (patients,), month of the visit: published too, and not thought to identify anyone


def synthetic_voters(rng: np.random.Generator, voters: int = 3000, patients: int = 600) -> Voters:
    """Voters of 20 postal codes, aged 18 to 90, drawn evenly; nobody real."""
    columns = rng.integers(42000, 42020, voters), rng.integers(18, 91, voters), rng.choice(["f", "m"], voters)
    return Voters(
        np.column_stack([column.astype(np.str_) for column in columns]),
        rng.choice(voters, patients, replace=False),
        rng.choice(DESCRIPTIONS, patients),
        rng.integers(1, 13, patients).astype(np.str_),
    )


class LinkageRow(NamedTuple):
    """One release and what links it to the roll; shares of the released records."""

    k: int  # asked for; 1 is the table as it is
    levels: tuple[int, ...]  # by column, how far it is generalised
    suppressed: float
    identified: float  # by the roll,
    identified_with_month: float  # and by who knows the month of the visit too
    disclosed: float  # whose description the roll gives away


class LinkageTable(NamedTuple):
    """Sections 2.3.1 and 2.3.2: the releases, and the first rows of the table before and after (`shown`, `shown_k`)."""

    rows: tuple[LinkageRow, ...]
    shown: Text
    shown_k: Text


def linkage_table(roll: Voters, ks: Sequence[int] = (1, 2, 5, 10)) -> LinkageTable:
    """k-anonymise the patients' table for each k and link it to the roll."""
    patients, rows = roll.rows[roll.patients], []
    for k in ks:
        release = anonymise(patients, QUASI_IDENTIFIERS, k, MOST_SUPPRESSED)
        linkage, month = link(release, roll.rows, roll.description), identified_with_month(roll, release)
        shares = release.suppressed, linkage.identified, linkage.disclosed[roll.patients]
        suppressed, identified, disclosed = (float(share.mean()) for share in shares)
        rows.append(LinkageRow(k, release.levels, suppressed, identified, month, disclosed))
    return LinkageTable(tuple(rows), patients[:10], release.rows[:10])


def identified_with_month(roll: Voters, release: Release) -> float:
    """The share of patients whose row is singled out by who knows their quasi-identifiers and the month of the visit.

    One thing more than the quasi-identifiers, known of one patient: k-anonymity says nothing about it.
    """
    month = Hierarchy("month", (str, star))
    rows, levels = np.column_stack([release.rows, roll.month]), (*release.levels, 0)
    beside = release._replace(rows=rows, levels=levels, hierarchies=(*release.hierarchies, month))
    patients = np.column_stack([roll.rows[roll.patients], roll.month])
    return float((link(beside, patients, roll.description).rows_per_person == 1).mean())
