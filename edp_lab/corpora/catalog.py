"""The catalogue of corpora: which files make them up, where they are, how to load one and how to fetch one.

A published corpus is in the first of `data_folders` that holds it complete. Any other corpus is a user's, given by its
path.

`edp-lab data fetch` brings the files of a published corpus, each checked against its pinned digest. A file grows beside
its target as ``<name>.part`` and takes the target's name, in one step, only once its digest is right.
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
NO_SLOTS = "every tag of the corpus is O: there is no slot to learn, and slot F1 is none"
START = comes_with("data") / "public_start" / "public-start" / "about.json"
SAMPLE, MOST_NEW = 5_000, 1 / 3  # utterances whose words are counted; share of new ones (jargon 0.2, Dutch 0.6)
TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 16  # bytes read at a time


class Source(NamedTuple):
    """One file that `edp-lab data fetch` downloads."""

    path: str  # below a data folder, with forward slashes
    size: int  # bytes
    digest: str  # sha256 of the content, hexadecimal
    url: str  # of its publication, pinned to a commit


class CorpusInfo(NamedTuple):
    """Facts about a corpus that need no loading."""

    name: str
    description: str
    licence: str
    where: Path | None  # the file or folder that holds it complete
    utterances: int | None  # None if the number is known only after loading


class _Entry(NamedTuple):
    description: str
    licence: str
    utterances: int
    path: str  # the reader's argument, below a data folder
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
_EMBEDDED: dict[str, str | None] = {  # name: its domain, None for all three
    "smart-home": None,
    **{f"smart-home-{domain}": domain for domain in ("communication", "health", "video")},
}


def load_corpus(name_or_path: str | Path, tokens: str = "words") -> Corpus:
    """Load a corpus of the catalogue by its name, or a user's own corpus by its path; `tokens`: words or characters.

    A path is anything that contains a separator, ends as a file of `formats`, or exists: a folder of ``seq.in``,
    ``seq.out``, ``label`` (or of train/valid/test sub-folders), or a file. The columns of a table may stand behind it:
    ``table.csv[question,topic]``. Label sets count as declared if ``intents.txt`` and ``slots.txt``, one name a line,
    lie beside the files; without tags the first suffices.

    UsageError for an unknown name, a corpus that is missing or incomplete, malformed files, or an utterance whose
    intent or slot is not declared, that shows nothing or that is too long.
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
    """A corpus and, if it is a user's own, the places of its utterances."""
    if hides_published(name):
        corpus, places = _user_corpus(name, given_path(name))
        note = f"the folder {name} was read, not the corpus of that name"
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
    raise unknown_name(name, [*_PUBLISHED, *_EMBEDDED], "; a path to your own corpus works too")


def cut_columns(name: str) -> tuple[str, str]:
    """A path, and the columns in brackets behind it, if any: "a.csv[question,topic]"."""
    match = re.fullmatch(r"(.*?\.\w+|[^\[]+)\[(.+)\]", name)
    return (match[1], match[2]) if match and not given_path(name).exists() else (name, "")


def hides_published(name: str) -> bool:
    """True if a folder here is read instead of the corpus of the catalogue with its name."""
    return name in (*_PUBLISHED, *_EMBEDDED) and bool(readers.seq_folders(given_path(name)))


def list_corpora() -> list[CorpusInfo]:
    """All corpora of the catalogue, downloaded or not."""
    from edp_lab.corpora import smart_home

    corpora = [CorpusInfo(name, e.description, e.licence, find(name), e.utterances) for name, e in _PUBLISHED.items()]
    where = smart_home.EMBEDDED if smart_home.EMBEDDED.exists() else None
    for name, domain in _EMBEDDED.items():
        description = f"generated commands: {domain or 'all three domains'}"
        utterances = None if domain else smart_home.EMBEDDED_UTTERANCES
        corpora.append(CorpusInfo(name, description, "Apache-2.0", where, utterances))
    return corpora


def find(name: str) -> Path | None:
    """Path of a published corpus that is complete (every file there, with the right size), or None."""
    complete = (folder for folder in data_folders() if not _missing(folder, name))
    return next((folder / _PUBLISHED[name].path for folder in complete), None)


def data_folders() -> list[Path]:
    """Folders searched for corpora: $EDP_LAB_DATA, then a checkout's ``data/``, then the user's cache."""
    given, beside = os.environ.get("EDP_LAB_DATA"), comes_with("data")
    first = [given_path(given)] if given else []
    return [*first, *([beside] if CARRIED not in beside.parents else []), user_cache()]


def sources(name: str) -> tuple[Source, ...]:
    """The files of a corpus that `fetch` downloads; UsageError if no corpus of this name can be fetched."""
    if name not in _sources():
        if name in _EMBEDDED:
            raise UsageError(f"{name} comes with edp_lab: there is nothing to fetch")
        raise unknown_name(name, _sources())
    return _sources()[name]


def unknown_name(name: str, known: Iterable[str], more: str = "") -> UsageError:
    """The error for a name that is not among the known ones, with the closest of them if one is close."""
    close = difflib.get_close_matches(name, known := list(known), n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return UsageError(f"unknown corpus {name!r}: {guess}known are {', '.join(known)}{more}")


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
    return UsageError(f"{name} is in none of {folders}: {hint}, or set EDP_LAB_DATA to the folder that holds it")


def _user_corpus(name: str, path: Path, columns: str = "") -> tuple[Corpus, list[str]]:
    """A user's corpus, with declared label sets if their files are next to it, and the place of each utterance."""
    if not path.exists():
        raise UsageError(f"no corpus at {name}: give a folder with seq.in, or a file: own.jsonl, own.csv[TEXT,INTENT]")
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
    """A note if the public start that `about` describes does not know many of the words, as in another language."""
    some = corpus.utterances[:: 1 + len(corpus.utterances) // SAMPLE]
    words = [word for u in some for word in re.findall(r"[^\W\d_]+", u.text.lower())]
    new = len(words) - sum(map({*read_json(about)["words"]}.__contains__, words))
    if new > MOST_NEW * len(words):
        yield f"{new / len(words):.0%} of the words are new to the public start (ours knows English): it will help less"


def _corpus(name: str, reading: Reading, labels_declared: bool) -> Corpus:
    """A corpus with the labels that occur."""
    utterances, _, warnings = reading
    intents, slots = labels_of(utterances)
    if not slots:
        warnings = [*warnings, NO_TAGS if utterances[0].tags is None else NO_SLOTS]
    return Corpus(name, tuple(utterances), intents, slots, labels_declared, tuple(warnings))


# ---- Fetching --------------------------------------------------------------------------------------------------------


def fetch(
    name: str, target: Path | None = None, progress: Callable[[int, int, str], None] = lambda done, size, what: None
) -> Path:
    """Fetch a corpus into a data folder and return that folder. Files already there and right are left alone.

    Args:
        name: a corpus of ``sources.tsv``.
        target: the data folder; by default the first of `data_folders` that can be written.
        progress: called with the bytes done, the file's size and which file it is: after every piece of a download, and
            once for a file that is already there.

    UsageError for an unknown name, no connection, a server's refusal, wrong content or a full disk; nothing is kept of
    a file that is not whole.
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
            if isinstance(error, urllib.error.URLError):  # before a server answered
                cause = getattr(error.reason, "strerror", None) or error.reason
                why = f"{urlsplit(source.url).hostname} cannot be reached ({cause})"
            elif isinstance(error, OSError) and error.filename:
                why = f"{error.filename}: {error.strerror}"
            raise UsageError(f"cannot fetch {source.path}: {why}; run the same command again") from None
    return folder


def _fetched(source: Source, target: Path) -> Iterator[int]:
    """Fetch one file; yields the number of bytes there, after every piece."""
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
                    break  # not the pinned file; its checksum will say so
        if not _is_right(part, source):
            raise UsageError(f"{source.url} came incomplete or changed: it does not have the pinned checksum")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _is_right(path: Path, source: Source) -> bool:
    """True if the file is there with the pinned digest."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == source.digest


def _writable_folder() -> Path:
    """The first of `data_folders` that can be written."""
    for folder in data_folders():
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if os.access(existing, os.W_OK):
            return folder
    raise UsageError(f"none of {', '.join(map(str, data_folders()))} can be written: name a folder that can")
