"""Random splits of a pooled corpus, 45:5:50 as in the paper (sec. 4.1): about as many non-members as members.

The official splits are not exchangeable, so a membership attack could tell them apart by style; and a text
that occurs in train and in test is a member and a non-member at once. Hence: pool, shuffle, and by default
keep utterances of the same token string on one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.errors import UsageError

RATIOS = (45, 5, 50)


@dataclass(frozen=True)
class Split:
    """Three disjoint parts that together hold every utterance of the corpus, each in shuffled order."""

    train: tuple[Utterance, ...]
    validation: tuple[Utterance, ...]
    test: tuple[Utterance, ...]

    @cached_property
    def duplicates(self) -> tuple[Utterance, ...]:
        """The test utterances whose token string occurs in train: none if duplicates were kept together."""
        members = {utterance.tokens for utterance in self.train}
        return tuple(utterance for utterance in self.test if utterance.tokens in members)

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

    groups: dict[object, list[Utterance]] = {}
    for i, utterance in enumerate(corpus.utterances):
        groups.setdefault(utterance.tokens if keep_duplicates_together else i, []).append(utterance)
    shuffled = list(groups.values())
    np.random.Generator(np.random.PCG64(seed)).shuffle(shuffled)

    total, n = sum(ratios), len(corpus.utterances)
    ends = (n * ratios[0] // total, n * (ratios[0] + ratios[1]) // total)
    parts: tuple[list[Utterance], ...] = ([], [], [])
    dealt = 0
    for group in shuffled:
        dealt += len(group)
        parts[sum(dealt > end for end in ends)].extend(group)

    for name, part in zip(("train", "validation", "test"), parts, strict=True):
        if not part:
            problem = f"splitting {corpus.name} ({n} utterances) {shares} leaves {name} empty"
            raise UsageError(f"{problem}: use a larger corpus or other ratios")
    return Split(*(tuple(part) for part in parts))
