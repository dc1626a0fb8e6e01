"""Utterances with one intent and, mostly, a BIO tag for each token; corpora; words as numbers; random splits."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

RATIOS = (45, 5, 50)  # as in the paper (sec. 4.1): about as many non-members as members
MOST_WORDS = 1000  # of an utterance: memory grows with the longest of a batch
# Characters that show nothing: controls, format characters, fillers, variation selectors, the empty Braille cell.
INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Utterance:
    """One annotated sentence, the unit of privacy."""

    tokens: tuple[str, ...]  # the words, at least one
    tags: tuple[str, ...] | None  # a BIO tag for each ("O", "B-city", "I-city"), or None without slot annotation
    intent: str
    written: str | None = None  # the text, where it is not the tokens with spaces between

    @property
    def text(self) -> str:
        return " ".join(self.tokens) if self.written is None else self.written

    @property
    def line(self) -> bytes:
        """The bytes that count for a corpus' checksum."""
        return f"{self.text}\t{' '.join(self.tags or ())}\t{self.intent}\n".encode()


@dataclass(frozen=True)
class Corpus:
    """A pooled corpus: every utterance of every official split, in file order."""

    name: str  # the catalogue's, or the path the user gave
    utterances: Sequence[Utterance]  # either all have tags or none has
    intents: tuple[str, ...]  # sorted
    slots: tuple[str, ...]  # sorted, without their B-/I- prefix; none without tags
    # Label sets are public knowledge (a published corpus, a declared list) rather than read off the utterances, which a
    # private run must flag.
    labels_declared: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def has_tags(self) -> bool:
        return bool(self.utterances) and self.utterances[0].tags is not None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag set; empty for a corpus without tags."""
        return tag_set(self.slots) if self.has_tags else ()

    @cached_property
    def sha256(self) -> str:
        """Checksum of the content (tokens, tags, intents), independent of the file format."""
        digest = hashlib.sha256()
        for u in self.utterances:
            digest.update(u.line)
        return digest.hexdigest()


def tag_set(slots: Sequence[str]) -> tuple[str, ...]:
    """The tag set of these slots: "O", then B- and I- of each."""
    return ("O", *(f"{prefix}-{slot}" for slot in slots for prefix in "BI"))


def labels_of(utterances: Iterable[Utterance]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The intents and the slots that occur, each sorted."""
    pairs = {(u.intent, u.tags) for u in utterances}
    slots = {tag[2:] for _, tags in pairs for tag in tags or () if tag != "O"}
    return tuple(sorted({intent for intent, _ in pairs})), tuple(sorted(slots))


def fold(text: str) -> str:
    """The text as texts are compared: whatever its capitals, Unicode form, invisible characters and spacing."""
    if text.isascii() and text.isprintable():
        return " ".join(text.lower().split())
    plain = INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
    return " ".join(unicodedata.normalize("NFKC", plain).split())


def by_character(u: Utterance) -> Utterance:
    """The utterance with each character a token, and marks with the letter that they are on; a slot stays one slot."""
    tokens: list[str] = []
    tags: list[str] = []
    for token, tag in zip(u.tokens, u.tags or ("O",) * len(u.tokens), strict=True):
        for k, character in enumerate(token):
            if k and (unicodedata.category(character)[0] == "M" or INVISIBLE.match(character)):
                tokens[-1] += character
            else:
                tokens.append(character)
                tags.append(f"I-{tag[2:]}" if k and tag != "O" else tag)
    return Utterance(tuple(tokens), None if u.tags is None else tuple(tags), u.intent, u.text)


def check_readable(u: Utterance, place: str) -> None:
    """UsageError if nothing of the utterance shows, or it is too long."""
    if not fold(u.text):
        raise UsageError(f"{place} shows nothing: give at least one word")
    if len(u.tokens) > MOST_WORDS:
        count = f"{len(u.tokens):,} {'words' if u.written is None else 'characters'}"
        raise UsageError(f"{place} has {count}, and at most {MOST_WORDS:,} are read: cut it into several")


# ---- As numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ragged:
    """Rows of n examples end to end."""

    codes: np.ndarray  # (R, ...) the rows, or with a `table` their numbers in it
    offsets: np.ndarray  # (n + 1) where each example's rows begin, and the last one's end
    table: np.ndarray | None = None  # (C, ...) what a number stands for

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Ragged:
        return cls(np.concatenate(rows) if rows else np.zeros(0, np.int64), _offsets(rows))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each example: (n)."""
        return np.diff(self.offsets)

    @property
    def values(self) -> np.ndarray:
        """All rows end to end."""
        return self.gather(np.arange(len(self)))[0]

    def gather(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of some examples, end to end, and how many each has."""
        start = self.offsets[examples]
        lengths = self.offsets[examples + 1] - start
        shift = np.repeat(start - (np.cumsum(lengths) - lengths), lengths)
        codes = self.codes[shift + np.arange(len(shift))]
        return (codes if self.table is None else self.table[codes]), lengths

    def take(self, examples: np.ndarray) -> tuple[Tensor, Tensor]:
        """The same as `gather`, as tensors."""
        import torch

        rows, lengths = self.gather(examples)
        return torch.from_numpy(rows), torch.from_numpy(lengths)

    def through(self, table: np.ndarray) -> Ragged:
        """The same examples, each number replaced by its row of `table`."""
        return Ragged(self.codes, self.offsets, table)


class Words(NamedTuple):
    """The words of n utterances: distinct ones, sorted, and for each token its number among them."""

    types: Sequence[str]
    numbers: Ragged

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> Words:
        types = sorted({word for words in sentences for word in words})
        return cls(types, numbered(sentences, types))


def numbered(rows: Sequence[Sequence[str]], names: Sequence[str]) -> Ragged:
    """Rows of names as their numbers among `names`; -1 for any other."""
    number = {name: k for k, name in enumerate(names)}
    codes = np.fromiter((number.get(name, -1) for row in rows for name in row), dtype=np.int64)
    return Ragged(codes, _offsets(rows))


def _offsets(rows: Sequence[Sequence[str] | np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])


# ---- Random splits ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Three disjoint parts that together hold every utterance of the corpus, each in shuffled order."""

    train: Sequence[Utterance]
    validation: Sequence[Utterance]
    test: Sequence[Utterance]
    duplicates: Sequence[Utterance] = ()  # of test, whose text occurs in train: none if kept together

    @property
    def counts(self) -> dict[str, int]:
        """Number of utterances of each part, and of duplicates in test."""
        return {part: len(utterances) for part, utterances in vars(self).items()}


def split(corpus: Corpus, seed: int, *, keep_duplicates_together: bool = True) -> Split:
    """Split the pooled corpus 45:5:50 at random, the same way for the same corpus, seed and option.

    The official splits are not exchangeable, so a membership attack could tell them apart by style; and a text that
    occurs in train and in test is a member and a non-member at once. Hence: pool, shuffle, and by default keep
    utterances of the same text, as `fold` compares them, on one side.

    Groups of utterances with the same token string (without `keep_duplicates_together`: single utterances)
    are shuffled by PCG64(seed) and dealt in that order, near-copies with the first of them; train, and train with
    validation, end before the first group that exceeds their share. So each is within one group of its ratio.

    Raises:
        UsageError: a part would be empty, or the seed is negative.
    """
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    n, texts = len(corpus.utterances), group_ids(corpus.utterances)
    groups = _numbers_of(u.tokens for u in corpus.utterances) if keep_duplicates_together else np.arange(n)
    order = np.arange(groups.max() + 1 if n else 0)
    np.random.Generator(np.random.PCG64(seed)).shuffle(order)
    turns = np.argsort(order)[groups]  # of each utterance's group
    if keep_duplicates_together:
        turns = turns[np.unique(texts, return_index=True)[1]][texts]
    shuffled = np.argsort(turns, kind="stable")
    dealt = np.cumsum(np.bincount(turns, minlength=len(order)))
    ends = n * np.cumsum(RATIOS)[:2] // sum(RATIOS)
    places = np.split(shuffled, [dealt[dealt <= end].max(initial=0) for end in ends])
    for name, rows in zip(("train", "validation", "test"), places, strict=True):
        if not len(rows):
            shares = ":".join(map(str, RATIOS))
            apart = " or --no-keep-duplicates-together" if keep_duplicates_together and 0 < ends[0] < ends[1] else ""
            raise UsageError(
                f"splitting {corpus.name} ({n} utterances) {shares} leaves {name} empty: use a larger corpus{apart}"
            )
    if not keep_duplicates_together:
        places.append(places[2][np.isin(texts[places[2]], texts[places[0]])])
    return Split(*(tuple(corpus.utterances[k] for k in rows) for rows in places))


def group_ids(utterances: Sequence[Utterance]) -> np.ndarray:
    """Number the distinct texts, as `fold` tells them apart, from 0 in order of appearance; each utterance's: (n)."""
    return _numbers_of(fold(u.text) for u in utterances)


def _numbers_of(texts: Iterable[Hashable]) -> np.ndarray:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
