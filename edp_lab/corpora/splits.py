"""Random splits of a pooled corpus, 45:5:50 as in the paper (sec. 4.1): about as many non-members as members.

The official splits are not exchangeable, so a membership attack could tell them apart by style; and a text
that occurs in train and in test is a member and a non-member at once. Hence: pool, shuffle, and by default
keep utterances of the same token string on one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edp_lab.corpora.corpus import CHUNK, Corpus, PackedUtterances, Utterance
from edp_lab.errors import UsageError

RATIOS = (45, 5, 50)


@dataclass(frozen=True)
class Split:
    """Three disjoint parts that together hold every utterance of the corpus, each in shuffled order.

    Attributes:
        duplicates: the test utterances whose token string occurs in train: none if duplicates were kept together.
    """

    train: Sequence[Utterance]
    validation: Sequence[Utterance]
    test: Sequence[Utterance]
    duplicates: Sequence[Utterance] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many utterances train, validation and test hold, and how many duplicates there are in test."""
        parts = ("train", "validation", "test", "duplicates")
        return {part: len(getattr(self, part)) for part in parts}


def split(
    corpus: Corpus,
    seed: int,
    ratios: tuple[int, int, int] = RATIOS,
    keep_duplicates_together: bool = True,
) -> Split:
    """Split the pooled corpus at random, the same way for the same corpus, seed and options.

    Groups of utterances with the same token string (without `keep_duplicates_together`: single utterances)
    are shuffled by PCG64(seed) and dealt in that order; train, and train with validation, end before the
    first group that exceeds their share. So each part's size is within one group of its ratio.

    Raises:
        UsageError: a negative seed, ratios that are not positive, or a part that would be empty.
    """
    shares = ":".join(map(str, ratios))
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    if min(ratios) <= 0:
        raise UsageError(f"ratios {shares} must all be positive")

    n, total = len(corpus.utterances), sum(ratios)
    groups = group_ids(corpus.utterances) if keep_duplicates_together else np.arange(n)
    order = np.arange(groups.max() + 1 if n else 0)
    np.random.Generator(np.random.PCG64(seed)).shuffle(order)
    ends = np.array([n * ratios[0] // total, n * (ratios[0] + ratios[1]) // total])
    dealt = np.cumsum(np.bincount(groups, minlength=len(order))[order])
    part_of_group, rank = np.empty_like(order), np.empty_like(order)
    part_of_group[order] = (dealt[:, None] > ends).sum(1)
    rank[order] = np.arange(len(order))
    shuffled = np.argsort(rank[groups], kind="stable")
    places = [shuffled[part_of_group[groups[shuffled]] == k] for k in range(3)]
    train, validation, test = (_select(corpus.utterances, own) for own in places)
    for name, part in zip(("train", "validation", "test"), (train, validation, test), strict=True):
        if not len(part):
            cure = "use a larger corpus" if ratios == RATIOS else "use a larger corpus or other ratios"
            raise UsageError(f"splitting {corpus.name} ({n} utterances) {shares} leaves {name} empty: {cure}")
    if keep_duplicates_together:
        return Split(train, validation, test)
    texts = group_ids(corpus.utterances)
    seen = np.isin(texts[places[2]], texts[places[0]])
    return Split(train, validation, test, _select(corpus.utterances, places[2][seen]))


def _select(utterances: Sequence[Utterance], places: np.ndarray) -> Sequence[Utterance]:
    if isinstance(utterances, PackedUtterances):
        return utterances.select(places)
    return tuple(utterances[k] for k in places)


def group_ids(utterances: Sequence[Utterance]) -> np.ndarray:
    """(n) Equal for utterances of the same token string and for no others, from 0 in the order of appearance.

    Packed ones are told apart by 128 bits of a hash, which two different strings share with chance 10^-26 in a million.
    """
    if not isinstance(utterances, PackedUtterances):
        known: dict[tuple[str, ...], int] = {}
        return np.array([known.setdefault(u.tokens, len(known)) for u in utterances], dtype=np.int64)
    numbers = utterances.coded.words.numbers
    parts = [
        _hashes(*numbers.gather(np.arange(start, min(start + CHUNK, len(numbers)))))
        for start in range(0, len(numbers), CHUNK)
    ]
    _, first, place = np.unique(np.concatenate(parts), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place]


def _hashes(words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """128 bits of each row of words: (R), (n) -> (n), as raw bytes, which sort."""
    starts = np.cumsum(lengths) - lengths
    place = (np.arange(len(words)) - np.repeat(starts, lengths)).astype(np.uint64)
    found = np.empty((len(lengths), 2), dtype=np.uint64)
    for half, salt in enumerate((0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)):
        mixed = _mix(words.astype(np.uint64) * np.uint64(salt) ^ _mix(place + np.uint64(salt)))
        found[:, half] = _mix(np.add.reduceat(mixed, starts) + lengths.astype(np.uint64))
    return np.ascontiguousarray(found).view("V16")[:, 0]


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: a bijection of 64-bit numbers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
