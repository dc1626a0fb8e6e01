"""Catalogue of corpora: list, find, load and fetch them.

A published corpus is loaded from the first of the `data_folders` that contains all of its files. Users load their own
corpus by its path.

`edp-lab data fetch` downloads the files of a published corpus and checks each against its pinned digest. A download is
written to ``<name>.part`` next to its target, and renamed atomically once its digest has been verified.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from edp_lab.corpora import formats, readers
from edp_lab.corpora.corpus import Corpus, by_character, check_readable, labels_of, notes_on
from edp_lab.corpora.readers import Reading
from edp_lab.errors import UsageError
from edp_lab.files import CARRIED, comes_with, given_path, read_json, user_cache

NO_TAGS = "the corpus has no tags: only the intent head is trained, and slots are not scored"
NO_SLOTS = "every tag of the corpus is O: there are no slots to learn, and slot F1 is none"
START = comes_with("data") / "public_start" / "public-start" / "about.json"
SAMPLE, MOST_NEW = 5_000, 1 / 3  # utterances to check; share of unknown words (jargon: 0.2, Dutch: 0.6)
TIMEOUT = 30.0  # seconds to wait for data
PIECE = 1 << 16  # bytes to read at a time


class Source(NamedTuple):
    """One file that `edp-lab data fetch` downloads."""

    path: str  # relative to a data folder, with forward slashes
    size: int  # bytes
    digest: str  # sha256 of the content, hexadecimal
    url: str  # public address, pinned to a commit


class CorpusInfo(NamedTuple):
    """Facts about a corpus that are known without loading it."""

    name: str
    description: str
    licence: str
    where: Path | None  # file or folder of the complete corpus
    utterances: int | None  # None if the number is known only after loading


class _Entry(NamedTuple):
    description: str
    licence: str
    utterances: int
    path: str  # argument of the reader, relative to a data folder
    read: Callable[[Path], Reading]


_PUBLISHED = {
    "atis": _Entry("air travel", "not stated: research use", 5_871, "atis", readers.read_seq_folder),
    "snips": _Entry(
        "seven assistant intents, tokenised and lower-cased",
        "CC0 1.0; tokenised form: not stated",
        14_484,
        "snips/slotgated",
        readers.read_seq_folder,
    ),
    "nlu-eval": _Entry(
        "home assistant: all utterances, intents without their scenario",
        "CC BY 4.0; reformatted copy: not stated",
        25_715,
        "nlu_eval/unislu_full",
        readers.read_unislu,
    ),
}
_EMBEDDED: dict[str, str | None] = {  # name: domain, None for all three
    "smart-home": None,
    **{f"smart-home-{domain}": domain for domain in ("communication", "health", "video")},
}


def load_corpus(name_or_path: str | Path, tokens: str = "words") -> Corpus:
    """Load a corpus of the catalogue by name, or your own by path. `tokens`: "words" or "characters".

    The argument is a path if it contains a separator, has a suffix of `formats`, or exists. A path names a file, or a
    folder with ``seq.in``, ``seq.out`` and ``label`` (or with train/valid/test sub-folders that contain these). The
    columns of a table may follow in brackets: ``table.csv[question,topic]``. To declare label sets, put ``intents.txt``
    and ``slots.txt`` with one name per line into the same folder; without tags, ``intents.txt`` is enough.

    Raises UsageError for an unknown name, a missing or incomplete corpus, malformed files, or an utterance that has an
    undeclared intent or slot, has no visible characters or is too long.
    """
    corpus, places = _loaded(str(name_or_path))
    if tokens == "characters":
        corpus = replace(corpus, utterances=tuple(map(by_character, corpus.utterances)))
    if not places:
        return corpus
    for utterance, place in zip(corpus.utterances, places, strict=True):
        check_readable(utterance, f"{place}: the utterance")
    return replace(corpus, warnings=(*corpus.warnings, *notes_on(corpus, places)))


def _loaded(name: str) -> tuple[Corpus, list[str]]:
    """Load a corpus; also return the file and line of each utterance if it is a user's own corpus."""
    if hides_published(name):
        corpus, places = _user_corpus(name, given_path(name))
        note = f"the folder {name} was read instead of the built-in corpus of that name"
        return replace(corpus, warnings=(note, *corpus.warnings)), places
    if name in _PUBLISHED:
        where = find(name)
        if where is None:
            raise _not_found(name)
        return _corpus(name, _PUBLISHED[name].read(where), labels_declared=True), []
    if name in _EMBEDDED:
        from edp_lab.corpora import smart_home

        return smart_home.load(_EMBEDDED[name]), []
    bare, columns = cut_columns(name)
    path = given_path(bare)
    if path.exists() or path.suffix in formats.READERS or {"/", "[", os.sep} & {*name}:
        return _user_corpus(name, path, columns)
    raise unknown_name(name, [*_PUBLISHED, *_EMBEDDED], "; a path to your own corpus works, too")


def cut_columns(name: str) -> tuple[str, str]:
    """Split a path from the columns in brackets after it, if any: "a.csv[question,topic]"."""
    match = re.fullmatch(r"(.*?\.\w+|[^\[]+)\[(.+)\]", name)
    return (match[1], match[2]) if match and not given_path(name).exists() else (name, "")


def hides_published(name: str) -> bool:
    """Whether a folder in the working directory is read instead of the catalogue's corpus of the same name."""
    return name in (*_PUBLISHED, *_EMBEDDED) and bool(readers.seq_folders(given_path(name)))


def list_corpora() -> list[CorpusInfo]:
    """All corpora of the catalogue, whether available or not."""
    from edp_lab.corpora import smart_home

    corpora = [CorpusInfo(name, e.description, e.licence, find(name), e.utterances) for name, e in _PUBLISHED.items()]
    where = smart_home.EMBEDDED if smart_home.EMBEDDED.exists() else None
    for name, domain in _EMBEDDED.items():
        description = f"generated commands: {domain or 'all three domains'}"
        utterances = None if domain else smart_home.EMBEDDED_UTTERANCES
        corpora.append(CorpusInfo(name, description, "Apache-2.0", where, utterances))
    return corpora


def find(name: str) -> Path | None:
    """Path of a published corpus, or None if it is incomplete (a file is missing or has the wrong size)."""
    complete = (folder for folder in data_folders() if not _missing(folder, name))
    return next((folder / _PUBLISHED[name].path for folder in complete), None)


def data_folders() -> list[Path]:
    """Folders searched for corpora: $EDP_LAB_DATA, then a checkout's ``data/``, then the user's cache."""
    given, beside = os.environ.get("EDP_LAB_DATA"), comes_with("data")
    first = [given_path(given)] if given else []
    return [*first, *([beside] if CARRIED not in beside.parents else []), user_cache()]


def sources(name: str) -> tuple[Source, ...]:
    """The files that `fetch` downloads for a corpus; UsageError if no corpus of this name can be fetched."""
    if name not in _sources():
        if name in _EMBEDDED:
            raise UsageError(f"{name} comes with edp_lab: there is nothing to fetch")
        raise unknown_name(name, _sources())
    return _sources()[name]


def unknown_name(name: str, known: Iterable[str], more: str = "") -> UsageError:
    """Error for an unknown name, which suggests a similar known name if there is one."""
    close = difflib.get_close_matches(name, known := list(known), n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return UsageError(f"unknown corpus {name!r}: {guess}known names are {', '.join(known)}{more}")


@cache
def _sources() -> dict[str, tuple[Source, ...]]:
    table: dict[str, list[Source]] = {}
    group: list[Source] = []
    folder = url = ""
    text = Path(__file__).with_name("sources.tsv").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("\t"):
            file, size, digest = line[1:].split("\t")
            group.append(Source(folder + file, int(size), digest, url + file))
        elif not line.startswith("#"):
            corpus, folder, url = line.split("\t")
            group = table.setdefault(corpus, [])
    return {corpus: tuple(files) for corpus, files in table.items()}


def _missing(folder: Path, name: str) -> list[Path]:
    files = [(folder / source.path, source.size) for source in sources(name)]
    return [file for file, size in files if not (file.is_file() and size == file.stat().st_size)]


def _not_found(name: str) -> UsageError:
    hint = f"run `edp-lab data fetch {name}`"
    for missing in (_missing(folder, name) for folder in data_folders()):
        if len(missing) < len(sources(name)):
            return UsageError(f"{name} is incomplete: {missing[0]} is missing or has the wrong size; {hint}")
    folders = ", ".join(map(str, data_folders()))
    return UsageError(f"{name} is in none of {folders}: {hint}, or set EDP_LAB_DATA to the folder that contains it")


def _user_corpus(name: str, path: Path, columns: str = "") -> tuple[Corpus, list[str]]:
    """Load a user's corpus, with declared label sets if any; also return the file and line of each utterance."""
    if not path.exists():
        raise UsageError(f"there is no {name}: give a folder with seq.in, or a file (own.jsonl, own.csv[TEXT,INTENT])")
    reading = readers.read_seq_folder(path) if path.is_dir() and not columns else formats.read_file(path, columns)
    beside = path if path.is_dir() else path.parent
    intent_file, slot_file = beside / "intents.txt", beside / "slots.txt"
    if not os.path.lexists(intent_file) and not os.path.lexists(slot_file):
        return _corpus(name, reading, False), reading.places

    def declared(file: Path) -> set[str]:
        if not file.exists():
            raise UsageError(f"{file} is missing: declared label sets need both intents.txt and slots.txt")
        return {line.strip() for line in readers.text_lines(file) if line.strip()}

    intents = declared(intent_file)
    slots = set() if reading.utterances[0].tags is None else declared(slot_file)
    for utterance, place in zip(reading.utterances, reading.places, strict=True):
        if utterance.intent not in intents:
            raise UsageError(f"{place}: intent {utterance.intent!r} is not listed in {intent_file}")
        for tag in utterance.tags or ():
            if tag != "O" and tag[2:] not in slots:
                raise UsageError(f"{place}: slot {tag[2:]!r} is not listed in {slot_file}")
    corpus = replace(_corpus(name, reading, True), intents=tuple(sorted(intents)), slots=tuple(sorted(slots)))
    return corpus, reading.places


def note_on_words(corpus: Corpus, about: Path = START) -> Iterator[str]:
    """Yield a note if the public start that `about` describes knows too few of the words, as in another language."""
    some = corpus.utterances[:: 1 + len(corpus.utterances) // SAMPLE]
    words = [word for u in some for word in re.findall(r"[^\W\d_]+", u.text.lower())]
    new = len(words) - sum(map({*read_json(about)["words"]}.__contains__, words))
    if new > MOST_NEW * len(words):
        yield f"{new / len(words):.0%} of the words are unknown to the public starting model, so it will help less"


def _corpus(name: str, reading: Reading, labels_declared: bool) -> Corpus:
    """Build a corpus with the labels that occur in it."""
    utterances, _, warnings = reading
    intents, slots = labels_of(utterances)
    if not slots:
        warnings = [*warnings, NO_TAGS if utterances[0].tags is None else NO_SLOTS]
    return Corpus(name, tuple(utterances), intents, slots, labels_declared, tuple(warnings))


# ---- Fetching --------------------------------------------------------------------------------------------------------


def fetch(
    name: str, target: Path | None = None, progress: Callable[[int, int, str], None] = lambda done, size, what: None
) -> Path:
    """Fetch a corpus into a data folder and return that folder. Existing correct files are not downloaded again.

    Args:
        name: a corpus of ``sources.tsv``.
        target: the data folder; by default the first of the `data_folders` that is writable.
        progress: called with the bytes received, the file's size and its name: after every piece of a download, and
            once for an existing file.

    Raises UsageError for an unknown name, a missing connection, a refusal by the server, wrong content or a full disk.
    Incomplete files are removed.
    """
    files = sources(name)
    folder = target or _writable_folder()
    for number, source in enumerate(files, start=1):
        try:
            for done in _fetched(source, folder / source.path):
                progress(done, source.size, f"file {number}/{len(files)} {source.path}")
        except urllib.error.HTTPError as error:
            error.close()
            raise UsageError(f"cannot fetch {source.url}: the server answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            why = str(error)
            if isinstance(error, urllib.error.URLError):  # no server answered
                cause = getattr(error.reason, "strerror", None) or error.reason
                why = f"{urlsplit(source.url).hostname} cannot be reached ({cause})"
            elif isinstance(error, OSError) and error.filename:
                why = f"{error.filename}: {error.strerror}"
            raise UsageError(f"cannot fetch {source.path}: {why}; run the same command again") from None
    return folder


def _fetched(source: Source, target: Path) -> Iterator[int]:
    """Fetch one file; after every piece, yield the number of bytes received so far."""
    if _is_right(target, source):
        yield target.stat().st_size
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT) as response, part.open("wb") as file:
            while piece := response.read(PIECE):
                file.write(piece)
                yield file.tell()
                if file.tell() > source.size:
                    break  # not the pinned file, so the checksum will not match
        if not _is_right(part, source):
            raise UsageError(f"{source.url} is incomplete or has changed: it does not have the pinned checksum")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _is_right(path: Path, source: Source) -> bool:
    """Whether the file exists and has the pinned digest."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == source.digest


def _writable_folder() -> Path:
    """First of the `data_folders` that is writable."""
    for folder in data_folders():
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if os.access(existing, os.W_OK):
            return folder
    raise UsageError(f"none of {', '.join(map(str, data_folders()))} is writable: name a writable folder")
