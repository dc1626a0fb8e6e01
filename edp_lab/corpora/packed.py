"""A corpus on disk that is mapped into memory instead of read: a million utterances cost no more than ten thousand.

    FOLDER/meta.json      format, label names, counts, checksums
    FOLDER/words.txt      distinct words, a line each
    FOLDER/*.npy          words (R), tags (R), intents (n) as numbers; offsets (n + 1)

An utterance is made anew whenever it is looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from edp_lab.corpora.coded import CHUNK, Coded, Ragged, Words
from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.errors import UsageError

FORMAT = "edp_lab packed corpus 1"
META, WORDS = "meta.json", "words.txt"
ARRAYS = ("words", "tags", "intents", "offsets")


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


# ---- Writing and reading -------------------------------------------------------------------------------------------


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
