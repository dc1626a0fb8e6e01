"""k-anonymity by generalisation and suppression, and the linkage attack on it. No differential privacy here.

A table's quasi-identifiers are (records, columns) of text; a released cell is a value, a broader one, or "*". The
promise of k-anonymity is about these columns alone: who knows one thing more may still single a person out, and where
k people share a secret, everyone of them is betrayed without being singled out.
Source: Sweeney 2002 (both papers in volume 10, 5 of IJUFKS); thesis, sections 2.3 to 2.3.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edp_lab.errors import UsageError

STAR = "*"
Text = NDArray[np.str_]


@dataclass(frozen=True)
class Hierarchy:
    """How the values of one column get broader: `widen[0]` keeps them, the last makes them "*"."""

    name: str
    widen: tuple[Callable[[str], str], ...]

    def at(self, level: int, column: Text) -> Text:
        """The column (n) at one level.

        Raises:
            UsageError: a value that cannot be widened, such as a text where numbers are put into bands.
        """
        try:
            return np.array([self.widen[level](str(value)) for value in column], dtype=np.str_)
        except ValueError as unfit:
            raise UsageError(f"column {self.name!r} holds a value that its levels do not fit: {unfit}") from unfit


@dataclass(frozen=True)
class Release:
    """What is published of the quasi-identifiers.

    Attributes:
        rows: (records, columns), in the order of the original.
        levels: by column, its level in `hierarchies`.
        suppressed: (records,), True where all of the record is "*" though the levels would have shown some of it.
    """

    rows: Text
    levels: tuple[int, ...]
    suppressed: NDArray[np.bool_]
    hierarchies: tuple[Hierarchy, ...]

    @property
    def anonymity(self) -> int:
        return anonymity(self.rows)


@dataclass(frozen=True)
class Linkage:
    """What a list of people with the same columns, such as a voter list, betrays about a release.

    Attributes:
        people_per_row: (records,), how many of the people each released row can belong to.
        rows_per_person: (people,), how many released rows can belong to each.
        identified: (records,), True where exactly one can: certain if the list is complete.
        disclosed: (people,), True where all rows that can be theirs hold the same secret: certain for anyone who is
            known to be in the release, identified or not.
    """

    people_per_row: NDArray[np.int64]
    rows_per_person: NDArray[np.int64]
    identified: NDArray[np.bool_]
    disclosed: NDArray[np.bool_]


def generalise_code(length: int) -> tuple[Callable[[str], str], ...]:
    """Levels of a code such as a postal code: its last 0 ... `length` characters starred, all of them as one "*"."""

    def keep(count: int) -> Callable[[str], str]:
        return lambda code: code[:count] + STAR * (len(code) - count)

    return (*(keep(count) for count in range(length, 0, -1)), star)


def generalise_number(*widths: int) -> tuple[Callable[[str], str], ...]:
    """Levels of a whole number: itself, the band of each width that it lies in ("30-39"), "*"."""

    def band(width: int) -> Callable[[str], str]:
        return lambda number: f"{(low := int(number) // width * width)}-{low + width - 1}"

    return (str, *(band(width) for width in widths), star)


def star(value: str) -> str:
    return STAR


def class_sizes(rows: ArrayLike) -> NDArray[np.int64]:
    """How many rows equal each row, itself included; (records, columns) -> (records,)."""
    _, place, counts = np.unique(_check_table(rows), axis=0, return_inverse=True, return_counts=True)
    return counts[place.ravel()]


def anonymity(rows: ArrayLike) -> int:
    """The largest k for which the rows are k-anonymous: the size of the smallest class of equal rows.

    Guarantee: by these columns alone nobody is told from fewer than k - 1 others. Not against anything else that an
    attacker knows, not for what the k have in common, not for two releases together; differential privacy has all
    three.

    Raises:
        UsageError: no rows, or no table.
    """
    return int(class_sizes(rows).min())


def anonymise(rows: ArrayLike, hierarchies: Sequence[Hierarchy], k: int, most_suppressed: float = 0.05) -> Release:
    """The least generalised k-anonymous release, after suppressing at most a share `most_suppressed` of the records.

    Every column is generalised as a whole (full-domain); a suppressed record is all "*", and these too are k or none.
    Least generalised: the smallest sum over columns of level / highest level, then the fewest suppressed records.
    The search looks at every combination of levels, so it is for few columns.

    Raises:
        UsageError: k no whole number from 1 to the number of records, another number of hierarchies than columns, or
            a share outside [0, 1], or no level that is broad enough.
    """
    table = _check_table(rows)
    if not isinstance(k, Integral) or not 1 <= k <= len(table):
        raise UsageError(f"k is {k}: it must be a whole number from 1 to the number of records, {len(table)}")
    if not 0 <= most_suppressed <= 1:
        raise UsageError(f"the share of suppressed records is {most_suppressed}: it must lie between 0 and 1")
    choices = _generalisations(table, hierarchies)
    releases = (_suppress(rows, levels, tuple(hierarchies), k) for levels, rows in choices)
    fit = (release for release in releases if release.suppressed.mean() <= most_suppressed and release.anonymity >= k)
    best = min(fit, key=lambda release: (_breadth(release), release.suppressed.sum()), default=None)
    if best is None:
        raise UsageError(f"no levels make the table {k}-anonymous: let the last level of every column be {STAR!r}")
    return best


def link(release: Release, people: ArrayLike, secrets: ArrayLike) -> Linkage:
    """The linkage attack: which released rows can belong to whom, by the columns that both tables have.

    Args:
        people: (people, columns), not generalised.
        secrets: (records,), what the release tells about each row beside its quasi-identifiers.

    Raises:
        UsageError: people with other columns than the release, or not one secret per row.
    """
    table, hidden = _check_table(people), np.asarray(secrets)
    if table.shape[1] != release.rows.shape[1]:
        raise UsageError(
            f"the people have {table.shape[1]} columns and the release {release.rows.shape[1]}: match them"
        )
    if hidden.shape != release.rows.shape[:1]:
        raise UsageError(f"there are {hidden.size} secrets for {len(release.rows)} released rows: give one for each")
    classes, place = np.unique(release.rows, axis=0, return_inverse=True)
    fits = _fits(classes, _at_levels(table, release))  # (classes, people)
    first, last = _extremes(np.unique(hidden, return_inverse=True)[1].ravel(), place.ravel(), len(classes))
    lowest = np.where(fits, first[:, None], hidden.size).min(axis=0)
    highest = np.where(fits, last[:, None], -1).max(axis=0)
    people_per_row = fits.sum(axis=1)[place.ravel()]
    rows_per_person = (fits * np.bincount(place.ravel())[:, None]).sum(axis=0)
    return Linkage(people_per_row, rows_per_person, people_per_row == 1, lowest == highest)


def _generalisations(table: Text, hierarchies: Sequence[Hierarchy]) -> Iterator[tuple[tuple[int, ...], Text]]:
    if len(hierarchies) != table.shape[1]:
        raise UsageError(f"there are {len(hierarchies)} hierarchies for {table.shape[1]} columns: give one for each")
    columns = [
        [h.at(level, column) for level in range(len(h.widen))] for h, column in zip(hierarchies, table.T, strict=True)
    ]
    for levels in itertools.product(*(range(len(column)) for column in columns)):
        yield levels, np.stack([column[level] for column, level in zip(columns, levels, strict=True)], axis=1)


def _suppress(rows: Text, levels: tuple[int, ...], hierarchies: tuple[Hierarchy, ...], k: int) -> Release:
    """The smallest classes become "*", until those that are left and the suppressed ones are k or more each."""
    sizes = class_sizes(rows)
    suppressed = sizes < k
    if 0 < suppressed.sum() < k and not suppressed.all():
        smallest = rows[~suppressed][sizes[~suppressed].argmin()]
        suppressed |= (rows == smallest).all(axis=1)
    shown = np.where(suppressed[:, None], STAR, rows)
    return Release(shown, levels, suppressed & (rows != STAR).any(axis=1), hierarchies)


def _breadth(release: Release) -> float:
    return sum(level / max(1, len(h.widen) - 1) for level, h in zip(release.levels, release.hierarchies, strict=True))


def _at_levels(people: Text, release: Release) -> Text:
    columns = zip(release.hierarchies, release.levels, people.T, strict=True)
    return np.stack([h.at(level, column) for h, level, column in columns], axis=1)


def _fits(classes: Text, people: Text) -> NDArray[np.bool_]:
    """Whether each class (classes, columns) can hold each of the people (people, columns): equal, or "*"."""
    fits = np.ones((len(classes), len(people)), dtype=np.bool_)
    for cell, value in zip(classes.T, people.T, strict=True):
        fits &= (cell[:, None] == value) | (cell[:, None] == STAR)
    return fits


def _extremes(codes: NDArray, place: NDArray, classes: int) -> tuple[NDArray, NDArray]:
    """The smallest and the largest code in each class: equal where the class has one secret only."""
    first, last = np.full(classes, codes.size), np.full(classes, -1)
    np.minimum.at(first, place, codes)
    np.maximum.at(last, place, codes)
    return first, last


def _check_table(rows: ArrayLike) -> Text:
    table = np.asarray(rows, dtype=np.str_)
    if table.ndim != 2 or not table.size:
        raise UsageError(f"a table of shape {table.shape} is empty or no table: it needs records and columns")
    return table
