"""What a corpus is: utterances with one intent each and, mostly, one BIO tag per token.

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
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 100_000  # utterances looked at together where all are: memory stays the same however many there are
FORMAT = "edp_lab packed corpus 1"
META, WORDS = "meta.json", "words.txt"
ARRAYS = ("words", "tags", "intents", "offsets")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One annotated sentence, the unit of privacy throughout the project.

    Attributes:
        tokens: the words, at least one.
        tags: one BIO tag per token ("O", "B-city", "I-city"), or None where a corpus has no slot annotation.
        intent: the intent's name.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None
    intent: str

    @property
    def text(self) -> str:
        return " ".join(self.tokens)

    @property
    def line(self) -> bytes:
        """All of it, as it counts for a corpus' checksum."""
        return f"{self.text}\t{' '.join(self.tags or ())}\t{self.intent}\n".encode()


@dataclass(frozen=True)
class Corpus:
    """A pooled corpus: every utterance of every official split, in file order.

    Attributes:
        name: the catalogue's name, or the path the user gave.
        utterances: all utterances; either all have tags or none has.
        labels_declared: True where the label sets below are public knowledge (a published corpus, a declared
            list) rather than read off the utterances, which a private run must flag.
        intents: all intents, sorted.
        slots: all slot names without their B-/I- prefix, sorted; empty for a corpus without tags.
    """

    name: str
    utterances: Sequence[Utterance]
    intents: tuple[str, ...]
    slots: tuple[str, ...]
    labels_declared: bool = True
    warnings: tuple[str, ...] = field(default=())

    @property
    def has_tags(self) -> bool:
        return bool(self.utterances) and self.utterances[0].tags is not None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag set: "O", then B- and I- of every slot; empty for a corpus without tags."""
        if not self.has_tags:
            return ()
        return ("O", *(f"{prefix}-{slot}" for slot in self.slots for prefix in "BI"))

    @cached_property
    def sha256(self) -> str:
        """Checksum of the content (tokens, tags, intents), independent of the file format."""
        known = getattr(self.utterances, "sha256", None)  # of packed ones
        if known is not None:
            return str(known)
        digest = hashlib.sha256()
        for u in self.utterances:
            digest.update(u.line)
        return digest.hexdigest()


# ---- As numbers ------------------------------------------------------------------------------------------------------


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


# ---- On disk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """What lies on disk, mapped."""

    types: tuple[str, ...]
    intent_names: tuple[str, ...]
    tag_names: tuple[str, ...]
    words: np.ndarray
    tags: np.ndarray
    intents: np.ndarray
    offsets: np.ndarray
    sha256: str


class PackedUtterances(Sequence[Utterance]):
    """Some utterances of a store, in an order of their own.

    Attributes:
        numbers: (n) which of the stored ones.
    """

    def __init__(self, store: Store, numbers: np.ndarray | None = None) -> None:
        self.store = store
        self.numbers = np.arange(len(store.intents)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Utterance: ...
    @overload
    def __getitem__(self, place: slice) -> PackedUtterances: ...
    def __getitem__(self, place: int | slice) -> Utterance | PackedUtterances:
        if isinstance(place, slice):
            return self.select(np.arange(len(self))[place])
        store, k = self.store, int(self.numbers[place])
        rows = slice(int(store.offsets[k]), int(store.offsets[k + 1]))
        tokens = tuple(store.types[w] for w in store.words[rows])
        tags = tuple(store.tag_names[t] for t in store.tags[rows])
        return Utterance(tokens, tags, store.intent_names[store.intents[k]])

    def __iter__(self) -> Iterator[Utterance]:
        return (self[k] for k in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedUtterances):
            return NotImplemented
        return self.sha256 == other.sha256 and np.array_equal(self.numbers, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    @property
    def sha256(self) -> str:
        """Of the whole store, as `Corpus.sha256`."""
        return self.store.sha256

    def select(self, places: np.ndarray) -> PackedUtterances:
        """Those at these places, in this order."""
        return PackedUtterances(self.store, self.numbers[places])

    @cached_property
    def coded(self) -> Coded:
        store = self.store
        words, tags = (Ragged(codes, store.offsets, chosen=self.numbers) for codes in (store.words, store.tags))
        intents = np.asarray(store.intents[self.numbers])
        return Coded(Words(store.types, words), store.intent_names, intents, store.tag_names, tags)


def coded(utterances: Sequence[Utterance]) -> Coded:
    """Utterances as numbers; packed ones are so already."""
    return utterances.coded if isinstance(utterances, PackedUtterances) else Coded.of(utterances)


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

    Raises:
        UsageError: the folder exists or has no parent, there are no utterances, or one has undeclared labels.
    """
    folder = Path(folder)
    if folder.exists():
        raise UsageError(f"{folder} exists: choose another --out")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"cannot write {folder}: there is no folder {folder.parent}; create it first")
    tag_names = ["O", *(f"{prefix}-{slot}" for slot in slots for prefix in "BI")]
    scratch = Path(tempfile.mkdtemp(prefix=".packing-", dir=folder.absolute().parent))
    try:
        meta = _write_arrays(scratch, utterances, list(intents), tag_names, progress)
        (scratch / META).write_text(json.dumps({**meta, "slots": list(slots)}, indent=1))
        os.replace(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_arrays(
    folder: Path,
    utterances: Iterable[Utterance],
    intents: list[str],
    tag_names: list[str],
    progress: Callable[[int], None],
) -> dict[str, object]:
    types: dict[str, int] = {}
    intent_number = {name: k for k, name in enumerate(intents)}
    tag_number = {name: k for k, name in enumerate(tag_names)}
    words, tags, chosen, offsets = array("i"), array("H"), array("H"), array("q", [0])
    digest = hashlib.sha256()
    for done, u in enumerate(utterances, 1):
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
        np.save(folder / f"{name}.npy", np.frombuffer(numbers, dtype=numbers.typecode))
    (folder / WORDS).write_text("".join(f"{word}\n" for word in types), encoding="utf-8")
    files = {name: _checksum(folder / name) for name in (WORDS, *(f"{name}.npy" for name in ARRAYS))}
    counts = {"utterances": len(chosen), "sha256": digest.hexdigest(), "files": files}
    return {"format": FORMAT, "intents": intents, "tags": tag_names, **counts}


def is_packed(path: Path) -> bool:
    return path.is_dir() and (path / META).is_file() and (path / "words.npy").is_file()


def load_packed(path: str | Path) -> Corpus:
    """The corpus in a folder that `write_packed` made; its arrays stay on disk.

    Raises:
        UsageError: a file is missing or not the one that was written.
    """
    folder = Path(path)
    try:
        meta = json.loads((folder / META).read_text())
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']!r}")
        for name, known in meta["files"].items():
            if _checksum(folder / name) != known:
                raise ValueError(f"{name} has another checksum")
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS]
        types = tuple((folder / WORDS).read_text(encoding="utf-8").split("\n")[:-1])
        words, tags, intents, offsets = arrays
        names = tuple(meta["intents"]), tuple(meta["tags"])
        store = Store(types, *names, words, tags, intents, offsets, meta["sha256"])
        return Corpus(str(path), PackedUtterances(store), names[0], tuple(meta["slots"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the packed corpus {folder} is damaged ({error}): make it again") from None


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
