"""Utterances as numbers: which word, tag and intent, in flat arrays that may lie in memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edp_lab.corpora.corpus import Utterance

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 100_000  # utterances looked at together where all are: memory stays the same however many there are


@dataclass(frozen=True)
class Ragged:
    """Rows of n examples end to end.

    Attributes:
        codes: (R, ...) the rows, or with a `table` their numbers in it.
        offsets: (m + 1) where each stored example's rows begin, and the last one's end.
        table: (C, ...) what a number stands for.
        chosen: (n) which of the m stored examples these are; None: all, in their order.
    """

    codes: np.ndarray
    offsets: np.ndarray
    table: np.ndarray | None = None
    chosen: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows], dtype=np.int64)])
        return cls(np.concatenate(rows) if rows else np.zeros(0, np.int64), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.chosen is None else len(self.chosen)

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each example: (n)."""
        counts = np.diff(self.offsets)
        return counts if self.chosen is None else counts[self.chosen]

    @property
    def values(self) -> np.ndarray:
        """All rows end to end."""
        return self.gather(np.arange(len(self)))[0]

    def gather(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of some examples, end to end, and how many each has."""
        stored = examples if self.chosen is None else self.chosen[examples]
        start = self.offsets[stored]
        lengths = self.offsets[stored + 1] - start
        shift = np.repeat(start - (np.cumsum(lengths) - lengths), lengths)
        codes = np.asarray(self.codes[shift + np.arange(len(shift))])
        return (codes if self.table is None else self.table[codes]), lengths

    def take(self, examples: np.ndarray) -> tuple[Tensor, Tensor]:
        """The same as tensors."""
        import torch

        rows, lengths = self.gather(examples)
        return torch.from_numpy(rows), torch.from_numpy(lengths)

    def through(self, table: np.ndarray) -> Ragged:
        """The same examples, with what `table` has for each number."""
        return Ragged(self.codes, self.offsets, table, self.chosen)


@dataclass(frozen=True)
class Words:
    """The words of n utterances: distinct ones, and for each token its number among them."""

    types: Sequence[str]
    numbers: Ragged

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> Words:
        types = sorted({token for sentence in sentences for token in sentence})
        number = {word: k for k, word in enumerate(types)}
        return cls(types, Ragged.of([np.array([number[t] for t in s], dtype=np.int64) for s in sentences]))

    def counts(self) -> np.ndarray:
        """How often each of the types occurs."""
        counts = np.zeros(len(self.types), dtype=np.int64)
        for start in range(0, len(self.numbers), CHUNK):
            some = np.arange(start, min(start + CHUNK, len(self.numbers)))
            counts += np.bincount(self.numbers.gather(some)[0], minlength=len(counts))
        return counts


@dataclass(frozen=True)
class Coded:
    """n annotated utterances.

    Attributes:
        intents: (n) numbers among `intent_names`.
        tags: of each token its number among `tag_names`; None without slot annotation.
    """

    words: Words
    intent_names: Sequence[str]
    intents: np.ndarray
    tag_names: Sequence[str]
    tags: Ragged | None

    @classmethod
    def of(cls, utterances: Sequence[Utterance]) -> Coded:
        intents = sorted({u.intent for u in utterances})
        tags = sorted({tag for u in utterances for tag in u.tags or ()})
        number = {name: k for k, name in enumerate(intents)}
        tag_number = {name: k for k, name in enumerate(tags)}
        rows = [np.array([tag_number[t] for t in u.tags or ()], dtype=np.int64) for u in utterances]
        tagged = any(u.tags is not None for u in utterances)
        return cls(
            Words.of([u.tokens for u in utterances]),
            intents,
            np.array([number[u.intent] for u in utterances], dtype=np.int64),
            tags,
            Ragged.of(rows) if tagged else None,
        )
