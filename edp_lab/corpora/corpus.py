"""What a corpus is: utterances with one intent each and, mostly, one BIO tag per token; and its random split.

They lie in memory, or on disk, mapped into memory instead of read: then a million cost no more than ten thousand, and
an utterance is made anew whenever it is looked at.

    FOLDER/meta.json      format, label names, counts, checksums
    FOLDER/words.txt      distinct words, a line each
    FOLDER/*.npy          words (R), tags (R), intents (n) as numbers; offsets (n + 1)

Models are given neither but `Coded` utterances: words, tags and intents as numbers, in flat arrays.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from edp_lab.errors import UsageError
from edp_lab.files import new_folder, read_json, regular, sealed, unsealed

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 1_000  # utterances made together where one after the other is looked at
CHUNK = 100_000  # utterances looked at together where all are: memory stays the same however many there are
FORMAT = "edp_lab packed corpus 1"
META, WORDS = "meta.json", "words.txt"
SEAL = "checksum"  # of the other entries; "sha256" is that of the utterances
ARRAYS = ("words", "tags", "intents", "offsets")
FILES = (WORDS, *(f"{name}.npy" for name in ARRAYS))
RATIOS = (45, 5, 50)  # as in the paper (sec. 4.1): about as many non-members as members


@dataclass(frozen=True, slots=True)
class Utterance:
    """One annotated sentence, the unit of privacy unless that is its speaker."""

    tokens: tuple[str, ...]  # the words, at least one
    tags: tuple[str, ...] | None  # a BIO tag for each ("O", "B-city", "I-city"), or None without slot annotation
    intent: str
    speaker: str | None = None  # whose it is, where the corpus says so; then of all its utterances

    @property
    def text(self) -> str:
        return " ".join(self.tokens)

    @property
    def line(self) -> bytes:
        """All of it, as it counts for a corpus' checksum."""
        speaker = "" if self.speaker is None else f"\t{self.speaker}"
        return f"{self.text}\t{' '.join(self.tags or ())}\t{self.intent}{speaker}\n".encode()


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
        """Checksum of the content (tokens, tags, intents, speakers), independent of the file format."""
        if isinstance(self.utterances, PackedUtterances):
            return self.utterances.sha256
        digest = hashlib.sha256()
        for u in self.utterances:
            digest.update(u.line)
        return digest.hexdigest()


def tag_set(slots: Sequence[str]) -> tuple[str, ...]:
    """All tags: "O", then B- and I- of every slot."""
    return ("O", *(f"{prefix}-{slot}" for slot in slots for prefix in "BI"))


# ---- As numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ragged:
    """Rows of n examples end to end."""

    codes: np.ndarray  # (R, ...) the rows, or with a `table` their numbers in it
    offsets: np.ndarray  # (m + 1) where each stored example's rows begin, and the last one's end
    table: np.ndarray | None = None  # (C, ...) what a number stands for
    chosen: np.ndarray | None = None  # (n) which of the m stored examples these are; None: all, in their order

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

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What `gather` gives for all examples, `CHUNK` at a time."""
        for start in range(0, len(self), CHUNK):
            yield self.gather(np.arange(start, min(start + CHUNK, len(self))))

    def take(self, examples: np.ndarray) -> tuple[Tensor, Tensor]:
        """As `gather`, but tensors."""
        import torch

        rows, lengths = self.gather(examples)
        return torch.from_numpy(rows), torch.from_numpy(lengths)

    def through(self, table: np.ndarray) -> Ragged:
        """The same examples, with what `table` has for each number."""
        return Ragged(self.codes, self.offsets, table, self.chosen)

    def select(self, places: np.ndarray) -> Ragged:
        """The examples at these places, in this order; nothing is copied."""
        chosen = places if self.chosen is None else self.chosen[places]
        return Ragged(self.codes, self.offsets, self.table, chosen)


class Words(NamedTuple):
    """The words of n utterances: distinct ones, and for each token its number among them."""

    types: Sequence[str]
    numbers: Ragged

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> Words:
        return cls(*_numbered(sentences))

    def counts(self) -> np.ndarray:
        """How often each of the types occurs."""
        return sum(
            (np.bincount(words, minlength=len(self.types)) for words, _ in self.numbers.chunks()),
            np.zeros(len(self.types), dtype=np.int64),
        )


class Coded(NamedTuple):
    """n annotated utterances."""

    words: Words
    intent_names: Sequence[str]
    intents: np.ndarray  # (n) numbers among `intent_names`
    tag_names: Sequence[str]
    tags: Ragged | None  # of each token its number among `tag_names`; None without slot annotation


def coded(utterances: Sequence[Utterance]) -> Coded:
    """Utterances as numbers; packed ones are so already."""
    if isinstance(utterances, PackedUtterances):
        return utterances.coded
    intents, numbers = _numbered([[u.intent] for u in utterances])
    tags, tag_numbers = _numbered([u.tags or () for u in utterances])
    tagged = any(u.tags is not None for u in utterances)
    words = Words.of([u.tokens for u in utterances])
    return Coded(words, intents, numbers.values, tags, tag_numbers if tagged else None)


def _numbered(rows: Sequence[Sequence[str]]) -> tuple[list[str], Ragged]:
    """The distinct names, sorted, and each row as numbers among them."""
    names = sorted({name for row in rows for name in row})
    number = {name: k for k, name in enumerate(names)}
    return names, Ragged.of([np.array([number[name] for name in row], dtype=np.int64) for row in rows])


# ---- On disk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PackedUtterances(Sequence[Utterance]):
    """Some utterances of a packed corpus, in an order of their own."""

    coded: Coded  # their arrays lie on disk, mapped
    sha256: str  # of the whole corpus, as `Corpus.sha256`

    def __len__(self) -> int:
        return len(self.coded.intents)

    def __iter__(self) -> Iterator[Utterance]:
        for start in range(0, len(self), AT_ONCE):
            yield from self._made(np.arange(start, min(start + AT_ONCE, len(self))))

    @overload
    def __getitem__(self, place: int) -> Utterance: ...
    @overload
    def __getitem__(self, place: slice) -> PackedUtterances: ...
    def __getitem__(self, place: int | slice) -> Utterance | PackedUtterances:
        if isinstance(place, slice):
            return self.select(np.arange(len(self))[place])
        return next(self._made(np.array([range(len(self))[place]])))

    def _made(self, places: np.ndarray) -> Iterator[Utterance]:
        words, intent_names, intents, tag_names, tags = self.coded
        assert tags is not None
        (numbers, lengths), (marks, _) = words.numbers.gather(places), tags.gather(places)
        tokens, names = [words.types[k] for k in numbers.tolist()], [tag_names[k] for k in marks.tolist()]
        ends = np.cumsum(lengths).tolist()
        for (start, end), intent in zip(pairwise([0, *ends]), intents[places].tolist(), strict=True):
            yield Utterance(tuple(tokens[start:end]), tuple(names[start:end]), intent_names[intent])

    def select(self, places: np.ndarray) -> PackedUtterances:
        """Those at these places, in this order."""
        words, intent_names, intents, tag_names, tags = self.coded
        assert tags is not None
        numbers = words.numbers.select(places)
        chosen = Coded(Words(words.types, numbers), intent_names, intents[places], tag_names, tags.select(places))
        return PackedUtterances(chosen, self.sha256)


def write_packed(
    utterances: Iterable[Utterance],
    intents: Sequence[str],
    slots: Sequence[str],
    folder: str | Path,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write annotated utterances, one after the other; the folder appears whole or not at all.

    Args:
        intents, slots: the declared label sets.
        progress: told now and then how many are done.

    UsageError where the folder is not empty, there are no utterances, or one has undeclared labels or a speaker, for
    whom the format has no place.
    """
    types: dict[str, int] = {}
    intent_number, tag_number = ({name: k for k, name in enumerate(names)} for names in (intents, tag_set(slots)))
    words, tags, chosen, offsets = array("i"), array("H"), array("H"), array("q", [0])
    digest = hashlib.sha256()
    with new_folder(Path(folder)) as scratch:
        for done, u in enumerate(utterances, 1):
            if u.speaker is not None:
                raise UsageError("a packed corpus has no place for speakers: write a .jsonl file")
            try:
                tags.extend([tag_number[tag] for tag in u.tags or ()])
                chosen.append(intent_number[u.intent])
            except KeyError as unknown:
                raise UsageError(f"utterance {u.text!r} has the undeclared label {unknown}: declare it") from None
            words.extend([types.setdefault(token, len(types)) for token in u.tokens])
            offsets.append(len(words))
            digest.update(u.line)
            if done % 10_000 == 0:
                progress(done)
        if not len(chosen):
            raise UsageError("there are no utterances to pack: give at least 1")
        for name, numbers in zip(ARRAYS, (words, tags, chosen, offsets), strict=True):
            np.save(scratch / f"{name}.npy", np.frombuffer(numbers, dtype=numbers.typecode))
        (scratch / WORDS).write_text("".join(f"{word}\n" for word in types), encoding="utf-8")
        files = {name: _checksum(scratch / name) for name in FILES}
        labels = {"format": FORMAT, "intents": [*intents], "tags": [*tag_number]}
        counts = {"utterances": len(chosen), "sha256": digest.hexdigest(), "files": files}
        (scratch / META).write_text(json.dumps(sealed({**labels, **counts, "slots": [*slots]}, SEAL), indent=1))


def is_packed(path: Path) -> bool:
    return path.is_dir() and (path / META).is_file() and (path / "words.npy").is_file()


def load_packed(path: str | Path) -> Corpus:
    """The corpus in a folder that `write_packed` made; its arrays stay on disk."""
    folder = Path(path)
    try:
        meta = read_json(folder / META)
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']!r}")
        meta = unsealed(meta, SEAL)
        for name in FILES:
            if _checksum(regular(folder / name)) != meta["files"][name]:
                raise ValueError(f"{name} has another checksum")
        words, tags, intents, offsets = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS
        )
        types = tuple((folder / WORDS).read_text(encoding="utf-8").split("\n")[:-1])
        intent_names, tag_names = tuple(meta["intents"]), tuple(meta["tags"])
        own = Coded(Words(types, Ragged(words, offsets)), intent_names, intents, tag_names, Ragged(tags, offsets))
        if tag_names != tag_set(meta["slots"]) or not re.fullmatch("[0-9a-f]{64}", meta["sha256"]):
            raise ValueError("its tags are not those of its slots, or it has no checksum")
        _check_arrays(own, meta["utterances"])
        return Corpus(str(path), PackedUtterances(own, meta["sha256"]), intent_names, tuple(meta["slots"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"the packed corpus {folder} is damaged ({error}): make it again") from None


def _check_arrays(own: Coded, utterances: int) -> None:
    """ValueError or the like where numbers mean nothing."""
    words, intent_names, intents, tag_names, tags = own
    assert tags is not None
    offsets = tags.offsets
    told = {"words": (words.numbers.values, words.types), "tags": (tags.values, tag_names)}
    for name, (numbers, names) in {**told, "intents": (intents, intent_names)}.items():
        if numbers.dtype.kind not in "iu" or not 0 <= numbers.min() <= numbers.max() < len(names):
            raise ValueError(f"its {name} are not among those that it declares")
        if not all(isinstance(one, str) for one in names):
            raise ValueError(f"not all of its {name} are text")
    if not utterances == len(intents) == len(offsets) - 1 or not len(words.numbers.values) == len(tags.values):
        raise ValueError(f"it does not hold {utterances} utterances")
    if (offsets[0], offsets[-1]) != (0, len(tags.values)) or np.diff(offsets).min() < 1:
        raise ValueError("its utterances do not follow each other")


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# ---- Random splits ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Three disjoint parts that together hold every utterance of the corpus, each in shuffled order."""

    train: Sequence[Utterance]
    validation: Sequence[Utterance]
    test: Sequence[Utterance]
    duplicates: Sequence[Utterance] = ()  # of test, whose token string occurs in train: none if kept together

    @property
    def counts(self) -> dict[str, int]:
        """How many utterances train, validation and test hold, and how many duplicates there are in test."""
        return {part: len(utterances) for part, utterances in vars(self).items()}


def split(
    corpus: Corpus, seed: int, *, keep_duplicates_together: bool = True, keep_speakers_together: bool = False
) -> Split:
    """Split the pooled corpus 45:5:50 at random, the same way for the same corpus, seed and option.

    The official splits are not exchangeable, so a membership attack could tell them apart by style; and a text that
    occurs in train and in test is a member and a non-member at once. Hence: pool, shuffle, and by default keep
    utterances of the same token string on one side.

    Groups of utterances with the same token string (without `keep_duplicates_together`: single utterances)
    are shuffled by PCG64(seed) and dealt in that order; train, and train with validation, end before the
    first group that exceeds their share. So each part's size is within one group of its ratio.

    With `keep_speakers_together` the groups are the speakers, whatever they say, and the shares are counted in
    speakers: how much one of them says moves no other. A part that would be empty is a UsageError.
    """
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    n, texts = len(corpus.utterances), group_ids(corpus.utterances)
    groups = texts if keep_duplicates_together else np.arange(n)
    if keep_speakers_together:
        groups = speaker_ids(corpus.utterances, corpus.name)
    order = np.arange(groups.max() + 1 if n else 0)
    np.random.Generator(np.random.PCG64(seed)).shuffle(order)
    counts = np.bincount(groups, minlength=len(order))
    dealt = np.cumsum(np.ones_like(counts) if keep_speakers_together else counts[order])
    ends = (len(order) if keep_speakers_together else n) * np.cumsum(RATIOS)[:2] // sum(RATIOS)
    part_of_group, rank = np.empty_like(order), np.empty_like(order)
    part_of_group[order] = (dealt[:, None] > ends).sum(1)
    rank[order] = np.arange(len(order))
    shuffled = np.argsort(rank[groups], kind="stable")
    places = [shuffled[part_of_group[groups[shuffled]] == k] for k in range(3)]
    for name, own in zip(("train", "validation", "test"), places, strict=True):
        if not len(own):
            shares = ":".join(map(str, RATIOS))
            if keep_speakers_together:
                raise UsageError(
                    f"splitting the {len(order)} speakers of {corpus.name} {shares} leaves {name} empty: use a corpus "
                    "of 20 speakers or more"
                )
            apart = " or --no-keep-duplicates-together" if keep_duplicates_together and 0 < ends[0] < ends[1] else ""
            raise UsageError(
                f"splitting {corpus.name} ({n} utterances) {shares} leaves {name} empty: use a larger corpus{apart}"
            )
    if groups is not texts:
        places.append(places[2][np.isin(texts[places[2]], texts[places[0]])])
    return Split(*(_select(corpus.utterances, own) for own in places))


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
    chunks = utterances.coded.words.numbers.chunks()
    rows = (row for words, lengths in chunks for row in np.split(words, np.cumsum(lengths)[:-1]))
    hashes = np.frombuffer(b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows), "V16")
    _, first, place = np.unique(hashes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place]


def speaker_ids(utterances: Sequence[Utterance], name: str) -> np.ndarray:
    """(n) Equal for utterances of the same speaker and for no others, from 0 in the order of appearance.

    UsageError where corpus `name` does not say whose an utterance is, or all are of one speaker.
    """
    speakers = [None] if isinstance(utterances, PackedUtterances) else [u.speaker for u in utterances]
    if None in speakers:
        raise UsageError(
            f'corpus {name} does not say who speaks: give each line of a JSONL file a "speaker", make one with edp-lab '
            "data make --speakers, or take nlu-eval-full"
        )
    known: dict[str | None, int] = {}
    found = np.array([known.setdefault(speaker, len(known)) for speaker in speakers], dtype=np.int64)
    if len(known) < 2:
        raise UsageError(f"all utterances of {name} are of one speaker, whom no other could hide: add other speakers")
    return found


def cap_speakers(
    utterances: Sequence[Utterance], cap: int, seed: int, name: str
) -> tuple[tuple[Utterance, ...], tuple[np.ndarray, ...]]:
    """At most `cap` utterances of each speaker, and of each speaker the numbers of theirs among these.

    Which of them are kept is a keyed hash of the utterance itself, so that it depends on no other speaker.
    """
    ids = speaker_ids(utterances, name)
    draw = [hashlib.sha256(f"{seed} cap ".encode() + u.line).digest() for u in utterances]
    kept: list[int] = []
    members: list[np.ndarray] = []
    for own in np.split(np.argsort(ids, kind="stable"), np.cumsum(np.bincount(ids))[:-1]):
        chosen = sorted(own.tolist(), key=lambda k: draw[k])[:cap]
        members.append(np.arange(len(kept), len(kept) + len(chosen)))
        kept += chosen
    return tuple(utterances[k] for k in kept), tuple(members)
