"""Utterances (an intent and, usually, a BIO tag per token), corpora, integer encoding and random splits."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

RATIOS = (45, 5, 50)  # as in the paper (section 4.1); makes the numbers of members and non-members about equal
MOST_WORDS = 1000  # maximum per utterance, because memory grows with the longest utterance of a batch
# Invisible characters: controls, format characters, fillers, variation selectors, the empty Braille cell.
INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Utterance:
    """One annotated sentence, the unit of privacy."""

    tokens: tuple[str, ...]  # the words, at least one
    tags: tuple[str, ...] | None  # a BIO tag per token ("O", "B-city", "I-city"), or None without slot annotation
    intent: str
    written: str | None = None  # the text, if it differs from the tokens joined by spaces

    @property
    def text(self) -> str:
        return " ".join(self.tokens) if self.written is None else self.written

    @property
    def line(self) -> bytes:
        """The bytes of the utterance that enter the checksum of a corpus."""
        return f"{self.text}\t{' '.join(self.tags or ())}\t{self.intent}\n".encode()


@dataclass(frozen=True)
class Corpus:
    """A pooled corpus: every utterance of every official split, in file order."""

    name: str  # name in the catalogue, or the user's path
    utterances: Sequence[Utterance]  # either all have tags or none has
    intents: tuple[str, ...]  # sorted
    slots: tuple[str, ...]  # sorted, without their B-/I- prefix; empty without tags
    # Whether label sets are public knowledge (a published corpus, a declared list). Otherwise they are collected from
    # the utterances, which a private run must flag.
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
    """Tag set of these slots: "O", followed by the B- and I- tags of each slot."""
    return ("O", *(f"{prefix}-{slot}" for slot in slots for prefix in "BI"))


def labels_of(utterances: Iterable[Utterance]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sorted intents and sorted slots of these utterances."""
    pairs = {(u.intent, u.tags) for u in utterances}
    slots = {tag[2:] for _, tags in pairs for tag in tags or () if tag != "O"}
    return tuple(sorted({intent for intent, _ in pairs})), tuple(sorted(slots))


def fold(text: str) -> str:
    """Normalise a text for comparison: ignore case, Unicode form, invisible characters and spacing."""
    if text.isascii() and text.isprintable():
        return " ".join(text.lower().split())
    plain = INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
    return " ".join(unicodedata.normalize("NFKC", plain).split())


def by_character(u: Utterance) -> Utterance:
    """Split an utterance into one token per character, with combining marks attached. A slot remains one slot."""
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
    """Raise UsageError if the utterance has no visible characters or is too long."""
    if not fold(u.text):
        raise UsageError(f"{place} has no visible characters: give at least one word")
    if len(u.tokens) > MOST_WORDS:
        count = f"{len(u.tokens):,} {'words' if u.written is None else 'characters'}"
        raise UsageError(f"{place} has {count}, but at most {MOST_WORDS:,} are allowed: split it")


# ---- As numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ragged:
    """Ragged array: the rows of n examples, concatenated."""

    codes: np.ndarray  # (R, ...) the rows, or their indices in `table`
    offsets: np.ndarray  # (n + 1) start of each example's rows, and end of the last example's rows
    table: np.ndarray | None = None  # (C, ...) the row for each index

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Ragged:
        return cls(np.concatenate(rows) if rows else np.zeros(0, np.int64), _offsets(rows))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of rows of each example: (n)."""
        return np.diff(self.offsets)

    @property
    def values(self) -> np.ndarray:
        """All rows, concatenated."""
        return self.gather(np.arange(len(self)))[0]

    def gather(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated rows of the given examples, and the number of rows of each example."""
        start = self.offsets[examples]
        lengths = self.offsets[examples + 1] - start
        shift = np.repeat(start - (np.cumsum(lengths) - lengths), lengths)
        codes = self.codes[shift + np.arange(len(shift))]
        return (codes if self.table is None else self.table[codes]), lengths

    def take(self, examples: np.ndarray) -> tuple[Tensor, Tensor]:
        """Like `gather`, but returns tensors."""
        import torch

        rows, lengths = self.gather(examples)
        return torch.from_numpy(rows), torch.from_numpy(lengths)

    def through(self, table: np.ndarray) -> Ragged:
        """The same examples, with each index replaced by its row of `table`."""
        return Ragged(self.codes, self.offsets, table)


class Words(NamedTuple):
    """The words of n utterances: the sorted distinct words, and each token's index among them."""

    types: Sequence[str]
    numbers: Ragged

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> Words:
        types = sorted({word for words in sentences for word in words})
        return cls(types, numbered(sentences, types))


def numbered(rows: Sequence[Sequence[str]], names: Sequence[str]) -> Ragged:
    """Encode rows of names by their indices in `names`; -1 for any other name."""
    number = {name: k for k, name in enumerate(names)}
    codes = np.fromiter((number.get(name, -1) for row in rows for name in row), dtype=np.int64)
    return Ragged(codes, _offsets(rows))


def _offsets(rows: Sequence[Sequence[str] | np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])


# ---- Random splits ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Three disjoint parts that together contain every utterance of the corpus, each in shuffled order."""

    train: Sequence[Utterance]
    validation: Sequence[Utterance]
    test: Sequence[Utterance]
    duplicates: Sequence[Utterance] = ()  # test utterances with a text that is also in train, unless kept together

    @property
    def counts(self) -> dict[str, int]:
        """Number of utterances in each part, and of duplicates in test."""
        return {part: len(utterances) for part, utterances in vars(self).items()}


def split(corpus: Corpus, seed: int, keep_duplicates_together: bool = True) -> Split:
    """Split the pooled corpus 45:5:50 at random. The same corpus, seed and option yield the same split.

    The official splits are not exchangeable, so a membership attack could tell them apart by style. In addition, a text
    that occurs in both train and test would be both a member and a non-member. So we pool and shuffle the utterances,
    and by default keep those with the same text (compared by `fold`) on one side.

    PCG64(seed) shuffles groups of utterances with the same tokens (without `keep_duplicates_together`, single
    utterances). Groups are assigned in this order; near-copies join the first of them. The training set ends
    before the first group that would exceed its share. The same rule applies to the training and validation set
    together, so both are within one group of their ratios.

    Raises:
        UsageError: a part would be empty, or the seed is negative.
    """
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    n, texts = len(corpus.utterances), group_ids(corpus.utterances)
    groups = _numbers_of(u.tokens for u in corpus.utterances) if keep_duplicates_together else np.arange(n)
    order = np.arange(groups.max() + 1 if n else 0)
    np.random.Generator(np.random.PCG64(seed)).shuffle(order)
    turns = np.argsort(order)[groups]  # position of each utterance's group
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
    """Index of each utterance's text among the distinct texts (compared by `fold`), in order of appearance: (n)."""
    return _numbers_of(fold(u.text) for u in utterances)


def _numbers_of(texts: Iterable[Hashable]) -> np.ndarray:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)


# ---- Notes for the owner of a corpus ---------------------------------------------------------------------------------
# Warnings before training on a corpus, one for each kind of mistake. They are computed from private utterances without
# noise, so a run's record, which contains them, lists them as not private. They contain labels, counts and line
# numbers, but never a text.

LONG, SHORT = 13, 3  # letters per word: a longer mean indicates unsplit text; a short single word is a command
# Scripts that put no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
UNSPACED = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def notes_on(corpus: Corpus, places: Sequence[str]) -> Iterator[str]:
    """Notes on a corpus as read from its files; `places`: file and line of each utterance."""
    utterances = corpus.utterances
    intents = Counter(u.intent for u in utterances)
    slots = Counter(slot for u in utterances for slot in {tag[2:] for tag in u.tags or () if tag != "O"})
    for kind, names, count in (("intent", corpus.intents, intents), ("slot", corpus.slots, slots)):
        yield from _alike(kind, names)
        once = [name for name in names if count[name] == 1]
        if once and not corpus.labels_declared:
            yield f"{_named(kind, once)} only one utterance: is this a mistake? The model will contain such names"
    texts = group_ids(utterances)
    first = np.unique(texts, return_index=True)[1][texts]
    if others := [k for k, j in enumerate(first) if utterances[k].intent != utterances[j].intent]:
        which = f"{len({*texts[others]}):,} texts have" if len({*texts[others]}) > 1 else "a text has"
        where = f"{places[first[others[0]]]}, and {places[others[0]]}"
        yield f"{which} several intents (the first: {where}): keep the right one"
    long = [u.text for u in utterances if len(u.text) > (SHORT if len(u.tokens) == 1 else LONG * len(u.tokens))]
    script = sum(UNSPACED.search(text) is not None for text in long)
    if 2 * len(long) > len(utterances) or 10 * script > len(utterances):
        yield (
            f"{len(long):,} of {len(utterances):,} utterances are texts without spaces, which count as one word. A "
            "model knows little about unseen words: use --split characters"
        )


def notes_on_split(corpus: Corpus, data: Split) -> Iterator[str]:
    """Yield a note if labels are missing in the training set."""
    seen = {utterance.intent for utterance in data.train}
    if unseen := [intent for intent in corpus.intents if intent not in seen]:
        yield f"{_named('intent', unseen)} no training utterances and cannot be learnt: add utterances"


def most_copies(utterances: Sequence[Utterance]) -> int:
    """Number of copies of the most frequent text, including near-copies; 0 without utterances."""
    return int(np.bincount(group_ids(utterances)).max(initial=0))


def _alike(kind: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a note if some labels look the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(fold(name), []).append(name)
    if same := [group for group in groups.values() if len(group) > 1]:
        composed = {unicodedata.normalize("NFC", name) for name in same[0]}
        show = repr if len(composed) == len(same[0]) else ascii  # otherwise they would look alike in the note, too
        more = f", and {len(same) - 1} more such groups" if len(same) > 1 else ""
        yield (
            f"{kind}s {' and '.join(map(show, same[0]))} differ only in capitals, invisible characters or Unicode form"
            f"{more}: spell them the same way, or they count as different labels"
        )


def _named(kind: str, names: Sequence[str]) -> str:
    return f"{kind} {names[0]!r} has" if len(names) == 1 else f"{len(names):,} {kind}s, such as {names[0]!r}, have"
